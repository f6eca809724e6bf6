//! One connection to the member: finds where to go on, or begins anew, and records until something calls for another.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::backlog::Room;
use super::board::Board;
use super::course::{Course, unless_stopped};
use super::door::Door;
use super::feed::Feed;
use super::recorder::Recorder;
use super::recording::Recording;
use super::status::{Reason, Role};
use super::turn::Post;
use super::{ArchiveError, Next, Settings};
use crate::format::{
    Chain, ChainError, Cluster, Extent, GenerationName, LeaseGrant, Lineage, Revision, Seal, generations, has_deltas,
};
use crate::snapshot;
use crate::source::{Access, Connection};
use crate::store::Store;

/// How many revisions behind a watch may begin. etcd reads its whole backlog again for each thousand that it sends, so a
/// longer way is shorter by a full snapshot.
pub(super) const MOST_BEHIND: u64 = 10_000;
/// Why a generation is not gone on with whose data is sealed in another way than is asked for now: encryption was turned on or
/// off, or its recipients have changed. A generation is one thing to who restores it, with the same keys for all of it.
pub(super) const OTHER_RECIPIENTS: &str = "the last generation is encrypted to other recipients";
/// How many of the newest generations are looked at when the very newest can't be gone on with: all but one of them may be
/// snapshots that were taken beside the one that is recorded into. Each takes three requests.
const RECENT: usize = 8;
/// How long etcd may take to say what a session begins with. Without a quorum it never does.
const ANSWER: Duration = Duration::from_secs(10);

/// What a session works with.
#[derive(Clone, Copy)]
pub(super) struct Session<'a> {
    pub door: &'a Door,
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
    /// How the generation's data is sealed, whatever is asked for by now.
    pub seal: Seal,
    /// What was learned of leases meanwhile, and is not recorded in this generation.
    pub grants: Vec<LeaseGrant>,
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
        // Until there is something to record nothing waits to be stored, and a full snapshot without its manifest is none.
        let Some(started) = unless_stopped(stop.clone(), Box::pin(self.start(full, course))).await else {
            return Ok(Next::Stop);
        };
        let mut start = match started? {
            Ok(start) => start,
            Err(reason) => return Ok(Next::Full(reason)),
        };
        // Of two generations the one with the later moments is taken for the later one, and a clock may have been set back.
        start.recorder.goes_beyond(course.left_at);
        course.seal = Some(start.seal.clone());
        course.records_since = Some(Instant::now());
        self.board.well();
        let post = if records { Post::Committer } else { Post::Standby };
        let mut recording = Recording::new(*self, start, post);
        let result = Box::pin(recording.run(course, leads, stop)).await;
        course.chain = recording.into_chain().or_else(|| course.chain.take());
        result
    }

    /// Something keeps it from its work for now. What waits to be stored goes on waiting.
    pub fn fault(&self, reason: Reason, message: &str) {
        self.board.fault(reason, message);
        self.door.failed(reason);
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
        self.follow(connection, chain, course.seal.clone()).await
    }

    /// A connection to the member, and whose member it is.
    async fn connect(&self) -> Result<(Connection, Cluster), ArchiveError> {
        let (connection, identity) = self.source.meet::<ArchiveError>().await?.ok_or(ArchiveError::Silent)?;
        if identity.has_whole_watches() {
            Ok((connection, identity.cluster))
        } else {
            Err(ArchiveError::TooOld(identity.version))
        }
    }

    /// Goes on with a generation, or with another one in its stead; or says why that is not possible. `known` is how the
    /// generation was sealed that was recorded into last.
    async fn follow(
        &self,
        mut connection: Connection,
        newest: Chain,
        known: Option<Seal>,
    ) -> Result<Result<Start, &'static str>, ArchiveError> {
        let now = revision(&mut connection).await?;
        let store = self.door.store();
        let seal = seal_for(&newest, known, Seal::of(store.keys())?);
        let other = in_its_stead(&store, &newest, now, &seal).await?;
        let chain = match other {
            Ok(None) => newest,
            Ok(Some(other)) => {
                self.board.stored(&other, other.last_moment());
                other
            }
            Err(reason) => return Ok(Err(reason)),
        };
        let recorder = Recorder::new(chain.head(), chain.last_events(), seal.event_hash());
        let feed = self.watch(&connection, recorder.watch_from(), self.room).await?;
        tracing::info!("going on after revision {} of {}", chain.head(), chain.key);
        Ok(Ok(Start { connection, chain, recorder, feed, seal, grants: Vec::new() }))
    }

    /// The generation of this cluster that began last. `known` was read before.
    async fn newest(&self, cluster: &Cluster, known: Option<Chain>) -> Result<Option<Chain>, ChainError> {
        let known = known.filter(|known| known.key.cluster == *cluster);
        let after = known.as_ref().map(|known| &known.key.name);
        let store = self.door.store();
        if let Some(newer) = newer(&store, &self.settings.lineage, cluster, after).await? {
            return Ok(Some(newer));
        }
        let Some(mut known) = known else { return Ok(None) };
        known.extend(&store).await?;
        known.demand_full(&store).await?;
        Ok(Some(known))
    }

    /// Begins a generation. The watch is there before the snapshot is, and in step, so that nothing between is compacted away,
    /// and no backlog has to be read again.
    pub async fn begin(&self, reason: &'static str, room: &Room) -> Result<Start, ArchiveError> {
        let (mut connection, _) = self.connect().await?;
        let watched_from = revision(&mut connection).await?.next();
        let feed = self.watch(&connection, watched_from, room).await?;
        // Not in step in time is no end: it may be so later, and if it is compacted before, that is seen at the end.
        if let Ok(in_step) = timeout(ANSWER, feed.in_step()).await {
            in_step?;
        }
        let (store, member) = (self.door.store(), std::slice::from_ref(self.source));
        let taken = snapshot::take(&store, member, &self.settings.lineage, |_| {}).await.map_err(Box::new)?;
        let chain = Chain::read(&store, &taken.generation).await?;
        let events = (chain.last_events(), taken.seal.event_hash());
        let recorder = Recorder::after_full(chain.head(), events, watched_from);
        self.board.took_full();
        tracing::info!("new generation {} at revision {}: {reason}", chain.key, chain.head());
        Ok(Start { connection, chain, recorder, feed, seal: taken.seal, grants: Vec::new() })
    }

    async fn watch(&self, connection: &Connection, from: Revision, room: &Room) -> Result<Feed, ArchiveError> {
        let opened = timeout(ANSWER, Feed::open(&connection.client, from, (&self.settings.spill, room))).await;
        Ok(opened.map_err(|_| ArchiveError::Silent)??)
    }
}

/// How a generation is gone on with. What of it was not stored when the recipients changed is stored as it began, for those who
/// read the rest of it; a full snapshot for the others follows.
fn seal_for(chain: &Chain, known: Option<Seal>, asked: Seal) -> Seal {
    known.filter(|known| known.is_of(chain.last_data())).unwrap_or(asked)
}

/// Another generation to go on with, if the newest one can't be gone on with; or why there is none. Somebody may have taken the
/// newest one as a snapshot beside an archive that passed it over, and records on in an older one.
async fn in_its_stead(
    store: &Store,
    newest: &Chain,
    now: Revision,
    seal: &Seal,
) -> Result<Result<Option<Chain>, &'static str>, ChainError> {
    let Err(reason) = can_be_followed(newest, now, seal) else { return Ok(Ok(None)) };
    match further(store, newest).await? {
        Some(other) if can_be_followed(&other, now, seal).is_ok() => Ok(Ok(Some(other))),
        Some(_) | None => Ok(Err(reason)),
    }
}

/// Whether a generation can be gone on with beside a member that has this revision now.
fn can_be_followed(chain: &Chain, now: Revision, seal: &Seal) -> Result<(), &'static str> {
    // etcd takes a watch from the future and silently leaves out what is before it.
    if now < chain.head() {
        return Err("the cluster's revision is below what was recorded");
    }
    if now.get() - chain.head().get() > MOST_BEHIND {
        return Err("the last record is too far behind");
    }
    if seal.is_of(chain.last_data()) { Ok(()) } else { Err(OTHER_RECIPIENTS) }
}

/// The one that goes furthest of this cluster's newest generations, if that is another one than the very newest.
async fn further(store: &Store, newest: &Chain) -> Result<Option<Chain>, ChainError> {
    let keys = generations(store, &newest.key.lineage).await?;
    let of_its_cluster = keys.into_iter().rev().filter(|key| key.cluster == newest.key.cluster);
    let mut furthest = Extent { last_moment: newest.last_moment(), head: newest.head() };
    let mut found = None;
    for key in of_its_cluster.take(RECENT) {
        let extent = Extent::read(store, &key).await;
        match extent {
            Ok(extent) if extent > furthest => (furthest, found) = (extent, Some(key)),
            Err(ChainError::Store(error)) => return Err(error.into()),
            // What is wrong with one is for others to tell.
            Ok(_)
            | Err(
                ChainError::NoFull(_) | ChainError::Manifest { .. } | ChainError::Broken(_) | ChainError::Gap { .. },
            ) => {}
        }
    }
    match found {
        Some(key) => Chain::read(store, &key).await.map(Some),
        None => Ok(None),
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
    use bytes::Bytes;

    use super::*;
    use crate::archive::retention::Retention;
    use crate::archive::scene::{Scene, Silent};
    use crate::format::Age;
    use crate::format::tests::stored;
    use crate::keys::Identities;

    #[tokio::test]
    async fn where_the_newest_can_not_be_followed_the_one_that_goes_further_is() {
        let scene = Scene::new();
        let store = scene.door.store();
        let record = stored(&store, 100, &[(20, 110), (90, 500)]).await;
        // Somebody took it beside that, of revision 10.
        let mut newest = stored(&store, 300, &[]).await;
        let revision = |number| Revision::new(number).unwrap();
        let chosen =
            async |newest: &Chain, now: u64| in_its_stead(&store, newest, revision(now), &Seal::Open).await.unwrap();
        assert_eq!(chosen(&newest, MOST_BEHIND + 10).await, Ok(None), "the newest one can");
        assert_eq!(chosen(&newest, MOST_BEHIND + 11).await, Ok(Some(record.clone())));
        assert_eq!(chosen(&newest, MOST_BEHIND + 90).await, Ok(Some(record.clone())));
        assert!(chosen(&newest, MOST_BEHIND + 91).await.is_err(), "neither can");
        let others = Identities::generate().recipients();
        let sealed = Seal::Age { recipients: others.clone(), writer: None };
        newest.full.data.age = Some(Age { recipients: others.fingerprints(), bytes: 1 });
        assert_eq!(chosen(&newest, 100).await, Ok(Some(record.clone())), "it is encrypted to others");
        // Whoever has recorded into it goes on with it, whatever is asked for by now.
        assert_eq!(seal_for(&newest, Some(sealed.clone()), Seal::Open), sealed);
        assert_eq!(seal_for(&record, Some(sealed), Seal::Open), Seal::Open);
        // One that goes no further is no way out.
        let last = stored(&store, 600, &[]).await;
        assert!(chosen(&last, MOST_BEHIND + 11).await.is_err());
    }

    #[tokio::test]
    async fn a_stop_is_heard_while_a_generation_is_begun() {
        let member = Silent::start().await;
        let scene = Scene::new().beside(member.url());
        let (session, course) = (&scene.session(), &mut Course::new(Retention::new(None)));
        let (_lead, leads) = watch::channel(true);
        let ended = member.stop_soon(move |stop| session.run(Some("there is none yet"), course, leads, stop)).await;
        assert_eq!(ended.unwrap(), Next::Stop);
    }

    #[tokio::test]
    async fn a_generation_whose_full_snapshot_is_gone_or_another_is_not_gone_on_with() {
        let scene = Scene::new();
        let (store, session) = (scene.door.store(), scene.session());
        // By who knows this one.
        let newest = async |known: &Chain| session.newest(&known.key.cluster, Some(known.clone())).await;
        stored(&store, 100, &[(20, 110)]).await;
        let mut chain = stored(&store, 200, &[(30, 210)]).await;
        for post in [Post::Standby, Post::TakingOver, Post::Committer] {
            let after = chain.key.name.clone();
            assert_eq!(read_on(&store, &mut chain, post, Some(&after)).await.unwrap(), None);
        }
        assert_eq!(newest(&chain).await.unwrap().as_ref(), Some(&chain));

        store.delete(&chain.key.full()).await.unwrap();
        for post in [Post::TakingOver, Post::Committer] {
            let error = read_on(&store, &mut chain, post, None).await.unwrap_err();
            assert!(matches!(&error, ChainError::NoFull(key) if *key == chain.key), "{error}");
        }
        // Nor is one whose manifest is no longer what it was.
        let mut other = chain.full.clone();
        other.taken += jiff::SignedDuration::from_secs(1);
        for (manifest, is_read) in [(Bytes::from_static(b"{"), false), (other.write().into(), true)] {
            store.create(&chain.key.full(), manifest).await.unwrap();
            let error = read_on(&store, &mut chain, Post::Committer, None).await.unwrap_err();
            assert!(matches!(&error, ChainError::Broken(_)) == is_read, "{error}");
            assert!(matches!(&error, ChainError::Manifest { .. }) != is_read, "{error}");
            store.delete(&chain.key.full()).await.unwrap();
        }
        // Nor with the one before it, by those who knew it and those who come new.
        let error = newest(&chain).await.unwrap_err();
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
