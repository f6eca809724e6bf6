//! Connections to members, one for each URL, for as long as they are in use. It hands them out and asks nothing itself.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{access::Access, error::CallError, member::MemberClient};

/// How long an unused connection is kept: long enough for the rounds of a transition, which come several times a
/// second; not for those of clusters at rest, since ten thousand of them are held by one operator.
const IDLE: Duration = Duration::from_secs(10);

/// Connections to the members of all clusters that take the same [`Access`].
#[derive(Debug)]
pub struct Pool {
    access: Access,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    swept: Instant,
    clients: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    client: MemberClient,
    used: Instant,
}

impl Pool {
    /// An empty pool.
    pub fn new(access: Access) -> Self {
        Self { access, kept: Mutex::new(Kept { swept: Instant::now(), clients: HashMap::new() }) }
    }

    /// The client of the member at this URL (`http://10.0.0.7:2379`). Dials at the first call. A connection that left a
    /// call without an answer is not handed out again: the next call dials anew.
    pub fn member(&self, url: &str) -> Result<MemberClient, CallError> {
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(kept.swept) >= IDLE {
            kept.swept = now;
            kept.clients.retain(|_, entry| now.duration_since(entry.used) < IDLE && !entry.client.suspect());
        }
        if let Some(entry) = kept.clients.get_mut(url).filter(|entry| !entry.client.suspect()) {
            entry.used = now;
            return Ok(entry.client.clone());
        }
        let client = MemberClient::new(self.access, url)?;
        kept.clients.insert(url.to_owned(), Entry { client: client.clone(), used: now });
        Ok(client)
    }

    /// How many connections are kept.
    pub fn len(&self) -> usize {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clients.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn unused_connections_are_dropped_and_used_ones_kept() {
        let pool = Pool::new(Access::plaintext());
        assert!(pool.is_empty());
        pool.member("http://10.0.0.1:2379").unwrap();
        pool.member("http://10.0.0.2:2379").unwrap();
        pool.member("http://10.0.0.1:2379").unwrap();
        assert_eq!(pool.len(), 2);
        tokio::time::advance(IDLE / 2).await;
        pool.member("http://10.0.0.2:2379").unwrap();
        tokio::time::advance(IDLE / 2).await;
        pool.member("http://10.0.0.3:2379").unwrap();
        assert_eq!(pool.len(), 2, "the first was not used for {IDLE:?}");
    }

    #[tokio::test]
    async fn a_connection_without_an_answer_is_not_handed_out_again() {
        let pool = Pool::new(Access::plaintext());
        // A port that nobody listens on: bound, never listened on, so nobody else gets it meanwhile.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}", socket.local_addr().unwrap());
        let first = pool.member(&url).unwrap();
        let error = first.status().await.unwrap_err();
        assert!(error.outcome_unknown() && error.refusal().is_none(), "{error}");
        assert!(first.suspect());
        assert!(!pool.member(&url).unwrap().suspect());
        assert_eq!(pool.len(), 1);
    }
}
