//! Connections to members, one for each endpoint, for as long as they are in use. It hands them out and asks nothing
//! itself.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    access::{Access, Endpoint},
    error::CallError,
    member::MemberClient,
};

/// How long an unused connection is kept: long enough for the rounds of a transition, which come several times a
/// second; not for those of clusters at rest, since ten thousand of them are held by one operator.
const IDLE: Duration = Duration::from_secs(10);

/// Connections to the members of all clusters.
#[derive(Debug)]
pub struct Pool {
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    swept: Instant,
    clients: HashMap<Endpoint, Entry>,
}

#[derive(Debug)]
struct Entry {
    access: Access,
    client: MemberClient,
    used: Instant,
}

impl Default for Pool {
    fn default() -> Self {
        Self { kept: Mutex::new(Kept { swept: Instant::now(), clients: HashMap::new() }) }
    }
}

impl Pool {
    /// The client of the member at this endpoint. Dials at the first call. A connection that left a call without an answer
    /// is not handed out again, nor one that was made with another access: the next call dials anew.
    pub fn member(&self, access: &Access, endpoint: &Endpoint) -> Result<MemberClient, CallError> {
        let now = Instant::now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(kept.swept) >= IDLE {
            kept.swept = now;
            kept.clients.retain(|_, entry| now.duration_since(entry.used) < IDLE && !entry.client.suspect());
        }
        let usable = |entry: &&mut Entry| !entry.client.suspect() && entry.access.is_same(access);
        if let Some(entry) = kept.clients.get_mut(endpoint).filter(usable) {
            entry.used = now;
            return Ok(entry.client.clone());
        }
        let client = MemberClient::new(access, endpoint)?;
        let entry = Entry { access: access.clone(), client: client.clone(), used: now };
        kept.clients.insert(endpoint.clone(), entry);
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

    fn endpoint(last: u8) -> Endpoint {
        Endpoint { addr: ([10, 0, 0, last], 2379).into(), host: format!("db-{last}.db.ns.svc") }
    }

    #[tokio::test(start_paused = true)]
    async fn unused_connections_are_dropped_and_used_ones_kept() {
        let (pool, access) = (Pool::default(), Access::plaintext());
        assert!(pool.is_empty());
        pool.member(&access, &endpoint(1)).unwrap();
        pool.member(&access, &endpoint(2)).unwrap();
        pool.member(&access, &endpoint(1)).unwrap();
        assert_eq!(pool.len(), 2);
        tokio::time::advance(IDLE / 2).await;
        pool.member(&access, &endpoint(2)).unwrap();
        tokio::time::advance(IDLE / 2).await;
        pool.member(&access, &endpoint(3)).unwrap();
        assert_eq!(pool.len(), 2, "the first was not used for {IDLE:?}");
    }

    /// Who observes waits for half a second, and not for the client's own deadline.
    #[tokio::test]
    async fn a_connection_on_which_a_call_was_given_up_late_is_not_handed_out_again() {
        let (pool, access) = (Pool::default(), Access::plaintext());
        // The kernel takes the connections, and nobody answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Endpoint { addr: silent.local_addr().unwrap(), host: "db".into() };
        let is_suspect_after = async |patience| {
            let member = pool.member(&access, &endpoint).unwrap();
            let given_up = tokio::time::timeout(Duration::from_millis(patience), member.status()).await;
            assert!(given_up.is_err(), "{given_up:?}");
            member.suspect()
        };
        assert!(!is_suspect_after(20).await, "another member has answered first");
        assert!(is_suspect_after(500).await);
        assert!(!pool.member(&access, &endpoint).unwrap().suspect());
    }

    #[tokio::test]
    async fn a_connection_without_an_answer_is_not_handed_out_again() {
        let (pool, access) = (Pool::default(), Access::plaintext());
        // A port that nobody listens on: bound, never listened on, so nobody else gets it meanwhile.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let endpoint = Endpoint { addr: socket.local_addr().unwrap(), host: "db".into() };
        let first = pool.member(&access, &endpoint).unwrap();
        let error = first.status().await.unwrap_err();
        assert!(error.outcome_unknown() && error.refusal().is_none(), "{error}");
        assert!(first.suspect());
        assert!(!pool.member(&access, &endpoint).unwrap().suspect());
        assert_eq!(pool.len(), 1);
    }
}
