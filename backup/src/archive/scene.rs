//! What a session needs, for tests: a store in memory, a member that nobody reaches, and watches that bring what they are told;
//! and a server that never answers, for who is told to stop meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::proto::{PbEvent, PbKeyValue};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::backlog::{Backlog, News, Room};
use super::board::Board;
use super::door::Door;
use super::feed::Feed;
use super::recorder::Recorder;
use super::session::{Session, Start};
use super::{Duty, Settings};
use crate::format::{Chain, EventHash, Hash, Seal};
use crate::keys::KeyFiles;
use crate::source::{Access, Tls};
use crate::store;
use crate::store::tests::faulty::sound;

pub(super) struct Scene {
    pub door: Door,
    pub board: Board,
    source: Access,
    settings: Settings,
    room: Room,
    folder: TempDir,
}

impl Scene {
    /// Of the lineage of the generations that `format` has for tests.
    pub fn new() -> Self {
        let store = sound();
        let (folder, lineage) = (tempfile::tempdir().unwrap(), "blue".parse().unwrap());
        let board = Board::new(store.address(), &lineage);
        let settings = Settings {
            lineage,
            duty: Duty::Always,
            flush_every: Duration::from_mins(1),
            full_every: Duration::from_hours(1),
            full_after: 1 << 20,
            spill: folder.path().to_owned(),
            spill_limit: 1 << 30,
            keep: None,
        };
        let source = Access { endpoint: "http://127.0.0.1:9".into(), tls: Tls::default(), user: None };
        let (door, room) = (Door::to(store, nowhere()), Room::new(settings.spill_limit));
        Self { door, board, source, settings, room, folder }
    }

    /// What is stored from now on is encrypted to whom these files name.
    pub fn encrypted_to(self, keys: KeyFiles) -> Self {
        Self { door: Door::to(self.door.store().with_keys(keys), nowhere()), ..self }
    }

    /// Beside the member that answers there.
    pub fn beside(self, endpoint: String) -> Self {
        Self { source: Access { endpoint, ..self.source }, ..self }
    }

    pub fn session(&self) -> Session<'_> {
        let Self { door, board, source, settings, room, folder: _ } = self;
        Session { door, source, settings, room, board }
    }

    /// Goes on behind the end of a generation, with the news that are put there.
    pub async fn start(&self, chain: Chain) -> (Start, Arc<Backlog>) {
        let news = Arc::new(Backlog::new(self.folder.path(), self.room.clone()).unwrap());
        let connection = self.source.connect().await.unwrap();
        // Nobody knows the events of its head, and there is nothing to prove of them.
        let recorder = Recorder::new(chain.head(), Hash::of(&[]), EventHash::Plain);
        let feed = Feed::told(Arc::clone(&news));
        (Start { connection, chain, recorder, feed, seal: Seal::Open, grants: Vec::new() }, news)
    }
}

/// How soon whoever is told to stop has to end.
const SOON: Duration = Duration::from_secs(10);

/// A server that takes connections, and never answers.
pub(crate) struct Silent(TcpListener);

impl Silent {
    pub async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.0.local_addr().unwrap())
    }

    /// The first connection to it. To be held: one that is closed would be an answer.
    pub async fn asked(&self) -> TcpStream {
        self.0.accept().await.unwrap().0
    }

    /// What comes of work that is told to stop as soon as it asks this server.
    pub async fn stop_soon<W: Future>(&self, work: impl FnOnce(watch::Receiver<bool>) -> W) -> W::Output {
        let (tell, stop) = watch::channel(false);
        let asked = async {
            let connection = self.asked().await;
            tell.send_replace(true);
            connection
        };
        let work = Box::pin(work(stop));
        let (ended, _connection) = timeout(SOON, async { tokio::join!(work, asked) }).await.unwrap();
        ended
    }
}

/// What is opened instead when a store refuses: it is never there.
fn nowhere() -> store::Settings {
    store::Settings {
        address: "file:///nowhere".parse().unwrap(),
        options: BTreeMap::new(),
        credentials: None,
        ca: None,
        keys: KeyFiles::default(),
    }
}

/// A put, which is all of its revision.
pub(super) fn put(revision: i64) -> News {
    let kv = PbKeyValue { key: b"key".to_vec(), mod_revision: revision, ..PbKeyValue::default() };
    News::Events(vec![PbEvent { r#type: 0, kv: Some(kv), prev_kv: None }])
}
