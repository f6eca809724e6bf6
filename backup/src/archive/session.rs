//! One connection to the member: finds where to go on, or begins anew, and records until something calls for another.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::backlog::Room;
use super::board::Board;
use super::course::Course;
use super::feed::{Feed, FeedError};
use super::recorder::Recorder;
use super::recording::Recording;
use super::status::Role;
use super::turn::Post;
use super::{ArchiveError, Next, Settings};
use crate::format::{Chain, ChainError, Cluster, GenerationName, Lineage, Revision, Seal, generations, has_deltas};
use crate::snapshot;
use crate::source::{Access, Connection, Identity};
use crate::store::Store;

/// How many revisions behind a watch may begin. etcd reads its whole backlog again for each thousand that it sends, so a
/// longer way is shorter by a full snapshot.
pub(super) const MOST_BEHIND: u64 = 10_000;
/// Why a generation is not gone on with whose data is sealed in another way than is asked for now: encryption was turned on or
/// off, or its recipients have changed. A generation is one thing to who restores it, with the same keys for all of it.
pub(super) const OTHER_RECIPIENTS: &str = "the last generation is encrypted to other recipients";
/// How long etcd may take to say what a session begins with. Without a quorum it never does.
const ANSWER: Duration = Duration::from_secs(10);

/// What a session works with.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub store: &'a Store,
    pub source: &'a Access,
    pub settings: &'a Settings,
    pub room: &'a Room,
    pub board: &'a Board,
}

/// Where recording goes on, and by which connection.
pub(super) struct Start {
    pub connection: Connection,
    pub chain: Chain,
    pub recorder: Recorder,
    pub feed: Feed,
}

impl Session<'_> {
    /// Records by a new connection; into a new generation, if there is a reason for one.
    pub async fn run(
        &self,
        full: Option<&'static str>,
        course: &mut Course,
        leads: watch::Receiver<bool>,
        stop: watch::Receiver<bool>,
    ) -> Result<Next, ArchiveError> {
        let records = *leads.borrow() && !course.rivals.yields();
        let start = match self.start(full, course).await? {
            Ok(start) => start,
            Err(reason) => return Ok(Next::Full(reason)),
        };
        self.board.well();
        let post = if records { Post::Committer } else { Post::Standby };
        let mut recording = Recording::new(*self, start, post);
        let result = Box::pin(recording.run(course, leads, stop)).await;
        course.chain = recording.into_chain().or_else(|| course.chain.take());
        result
    }

    /// Where to begin: at what was prepared, with a new generation, or where the last one ends; else why not there.
    async fn start(
        &self,
        full: Option<&'static str>,
        course: &mut Course,
    ) -> Result<Result<Start, &'static str>, ArchiveError> {
        if let Some(start) = course.prepared.take() {
            start.feed.take_all_room();
            course.retention.full_taken();
            self.board.stored(&start.chain, jiff::Timestamp::now());
            return Ok(Ok(start));
        }
        if let Some(reason) = full {
            self.board.role(Role::Committer);
            let start = self.begin(reason, self.room).await?;
            course.retention.full_taken();
            self.board.stored(&start.chain, jiff::Timestamp::now());
            return Ok(Ok(start));
        }
        let (connection, cluster) = self.connect().await?;
        let Some(chain) = self.newest(&cluster, course.chain.take()).await? else {
            return Ok(Err("there is none yet"));
        };
        self.board.stored(&chain, chain.last_moment());
        self.follow(connection, chain).await
    }

    /// A connection to the member, and whose member it is.
    async fn connect(&self) -> Result<(Connection, Cluster), ArchiveError> {
        let mut connection = self.source.connect().await?;
        let identity = timeout(ANSWER, Identity::ask(&mut connection.client)).await;
        let Identity { cluster, version: _ } = identity.map_err(|_| ArchiveError::Silent)??;
        Ok((connection, cluster))
    }

    /// Goes on with a generation, or says why that is not possible.
    async fn follow(
        &self,
        mut connection: Connection,
        chain: Chain,
    ) -> Result<Result<Start, &'static str>, ArchiveError> {
        let now = revision(&mut connection).await?;
        // etcd takes a watch from the future and silently leaves out what is before it.
        if now < chain.head() {
            return Ok(Err("the cluster's revision is below what was recorded"));
        }
        if now.get() - chain.head().get() > MOST_BEHIND {
            return Ok(Err("the last record is too far behind"));
        }
        let seal = Seal::of(self.store.keys())?;
        if !seal.is_of(chain.last_data()) {
            return Ok(Err(OTHER_RECIPIENTS));
        }
        let recorder = Recorder::new(chain.head(), chain.last_events(), seal.event_hash());
        let feed = self.watch(&connection, recorder.watch_from(), self.room).await?;
        tracing::info!("going on after revision {} of {}", chain.head(), chain.key);
        Ok(Ok(Start { connection, chain, recorder, feed }))
    }

    /// The generation of this cluster that began last. `known` was read before.
    async fn newest(&self, cluster: &Cluster, known: Option<Chain>) -> Result<Option<Chain>, ChainError> {
        let known = known.filter(|known| known.key.cluster == *cluster);
        let after = known.as_ref().map(|known| &known.key.name);
        if let Some(newer) = newer(self.store, &self.settings.lineage, cluster, after).await? {
            return Ok(Some(newer));
        }
        let Some(mut known) = known else { return Ok(None) };
        known.extend(self.store).await?;
        known.demand_full(self.store).await?;
        Ok(Some(known))
    }

    /// Begins a generation. The watch is there before the snapshot is, so that nothing between is compacted away, and no
    /// backlog has to be read again.
    pub async fn begin(&self, reason: &'static str, room: &Room) -> Result<Start, ArchiveError> {
        let (mut connection, _) = self.connect().await?;
        let watched_from = revision(&mut connection).await?.next();
        let feed = self.watch(&connection, watched_from, room).await?;
        let member = std::slice::from_ref(self.source);
        let taken = snapshot::take(self.store, member, &self.settings.lineage, |_| {}).await.map_err(Box::new)?;
        let chain = Chain::read(self.store, &taken.generation).await?;
        let events = (chain.last_events(), taken.event_hash);
        let recorder = Recorder::after_full(chain.head(), events, watched_from);
        self.board.took_full();
        tracing::info!("new generation {} at revision {}: {reason}", chain.key, chain.head());
        Ok(Start { connection, chain, recorder, feed })
    }

    async fn watch(&self, connection: &Connection, from: Revision, room: &Room) -> Result<Feed, FeedError> {
        Feed::open(&connection.client, from, (&self.settings.spill, room)).await
    }
}

/// Reads what others have added to a generation. Who stores, or is about to, also demands that its full snapshot is still
/// there: a person or another program may have deleted it. If nothing was added, it gives the last generation that began
/// after `after`.
pub(super) async fn read_on(
    store: &Store,
    chain: &mut Chain,
    post: Post,
    after: Option<&GenerationName>,
) -> Result<Option<Chain>, ChainError> {
    let before = chain.head();
    chain.extend(store).await?;
    match post {
        Post::TakingOver | Post::Committer => chain.demand_full(store).await?,
        // Who stores begins a newer generation then, and this one goes over to that.
        Post::Standby => {}
    }
    match after {
        Some(after) if chain.head() == before => {
            newer(store, &chain.key.lineage, &chain.key.cluster, Some(after)).await
        }
        Some(_) | None => Ok(None),
    }
}

/// The last generation of this cluster that began after this one, or the last of all.
pub(super) async fn newer(
    store: &Store,
    lineage: &Lineage,
    cluster: &Cluster,
    after: Option<&GenerationName>,
) -> Result<Option<Chain>, ChainError> {
    let keys = generations(store, lineage).await?;
    let newer = keys.iter().rev().filter(|key| key.cluster == *cluster && after.is_none_or(|after| key.name > *after));
    for key in newer {
        match Chain::read(store, key).await {
            Ok(chain) => return Ok(Some(chain)),
            // One that was recorded into and can't be restored any more. Whoever went on in one before it would leave it the
            // newest for all who restore.
            Err(ChainError::NoFull(full)) if has_deltas(store, key).await? => return Err(ChainError::NoFull(full)),
            // One whose snapshot is not complete, or never was.
            Err(ChainError::NoFull(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The revision of the cluster, as its quorum knows it.
pub(super) async fn revision(connection: &mut Connection) -> Result<Revision, ArchiveError> {
    let asked = timeout(ANSWER, Box::pin(connection.client.get("quorate", None))).await;
    let answer = asked.map_err(|_| ArchiveError::Silent)??;
    let revision = answer.header().map(etcd_client::ResponseHeader::revision).unwrap_or_default();
    Ok(Revision::from_etcd(revision).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::archive::Duty;
    use crate::format::tests::stored;
    use crate::source::Tls;
    use crate::store::tests::faulty::sound;

    /// The newest generation, by who knows this one.
    async fn newest(store: &Store, known: &Chain) -> Result<Option<Chain>, ChainError> {
        let source = Access { endpoint: "http://nowhere".into(), tls: Tls::default(), user: None };
        let settings = Settings {
            lineage: known.key.lineage.clone(),
            duty: Duty::Always,
            flush_every: Duration::from_secs(1),
            full_every: Duration::from_hours(1),
            full_after: 1 << 20,
            spill: "/nowhere".into(),
            spill_limit: 0,
            keep: None,
        };
        let board = Board::new(store.address(), &settings.lineage);
        let room = Room::new(0);
        let session = Session { store, source: &source, settings: &settings, room: &room, board: &board };
        session.newest(&known.key.cluster, Some(known.clone())).await
    }

    #[tokio::test]
    async fn a_generation_whose_full_snapshot_is_gone_is_not_gone_on_with() {
        let store = sound();
        stored(&store, 100, &[(20, 110)]).await;
        let mut chain = stored(&store, 200, &[(30, 210)]).await;
        for post in [Post::Standby, Post::TakingOver, Post::Committer] {
            let after = chain.key.name.clone();
            assert_eq!(read_on(&store, &mut chain, post, Some(&after)).await.unwrap(), None);
        }
        assert_eq!(newest(&store, &chain).await.unwrap().as_ref(), Some(&chain));

        store.delete(&chain.key.full()).await.unwrap();
        for post in [Post::TakingOver, Post::Committer] {
            let error = read_on(&store, &mut chain, post, None).await.unwrap_err();
            assert!(matches!(&error, ChainError::NoFull(key) if *key == chain.key), "{error}");
        }
        // Nor with the one before it, by those who knew it and those who come new.
        let error = newest(&store, &chain).await.unwrap_err();
        assert!(matches!(&error, ChainError::NoFull(key) if *key == chain.key), "{error}");
        let error = newer(&store, &chain.key.lineage, &chain.key.cluster, None).await.unwrap_err();
        assert!(matches!(&error, ChainError::NoFull(key) if *key == chain.key), "{error}");
        // One that another archive has begun instead is gone over to.
        let after = chain.key.name.clone();
        assert_eq!(read_on(&store, &mut chain, Post::Standby, Some(&after)).await.unwrap(), None);
        let next = stored(&store, 300, &[]).await;
        assert_eq!(read_on(&store, &mut chain, Post::Standby, Some(&after)).await.unwrap(), Some(next));
    }
}
