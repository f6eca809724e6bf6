//! Recording from watches that bring what the test tells, into a store in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use super::next_full::MOST_DELTAS;
use super::*;
use crate::archive::backlog::Backlog;
use crate::archive::feed::FeedError;
use crate::archive::retention::Retention;
use crate::archive::scene::{Scene, Silent, put};
use crate::archive::session::OTHER_RECIPIENTS;
use crate::format::tests::{at, stored};
use crate::format::{Age, LeaseGrant};
use crate::keys::{Identities, KeyFiles};
use crate::store::{Act, Failure, StoreError};

/// A moment, in seconds, that no clock has come to.
const AHEAD: i64 = 40_000_000_000;

fn course() -> Course {
    Course::new(Retention::new(None))
}

/// How the watch of a member that is gone ends.
fn lost() -> FeedError {
    FeedError::Canceled("the stream has ended".into())
}

/// It has sent three revisions behind the end of this record.
async fn of_a_member_that_is_gone(scene: &Scene) -> (Chain, Recording<'_>) {
    let chain = stored(&scene.door.store(), 100, &[(20, 110)]).await;
    let (start, news) = scene.start(chain.clone()).await;
    for revision in 21..=23 {
        assert!(news.push(put(revision)));
    }
    news.end(lost());
    (chain, Recording::new(scene.session(), start, Post::Committer))
}

#[tokio::test]
async fn what_was_heard_until_the_watch_ended_is_stored() {
    let scene = Scene::new();
    let (chain, mut recording) = of_a_member_that_is_gone(&scene).await;
    let (_lead, leads) = watch::channel(true);
    let (_tell, stop) = watch::channel(false);
    let ended = Box::pin(recording.run(&mut course(), leads, stop)).await;
    assert!(matches!(ended, Err(ArchiveError::Feed(FeedError::Canceled(_)))), "{ended:?}");
    let stored = Chain::read(&scene.door.store(), &chain.key).await.unwrap();
    assert_eq!(stored.head().get(), 22, "nobody knows whether 23 was whole");
    assert_eq!(recording.into_chain(), Some(stored));
}

#[tokio::test]
async fn what_waits_when_the_member_is_gone_is_stored_however_late_the_store_takes_it() {
    let scene = Scene::new();
    let (chain, mut recording) = of_a_member_that_is_gone(&scene).await;
    // Nobody reaches the member, which does not lead any more, while all of it waits.
    Box::pin(recording.look(&mut course(), true)).await.unwrap();
    recording.turn(false);
    assert_eq!(scene.board.read().role, Role::Committer);
    let (_lead, leads) = watch::channel(false);
    let (_tell, stop) = watch::channel(false);
    let ended = Box::pin(recording.run(&mut course(), leads, stop)).await;
    assert!(matches!(ended, Err(ArchiveError::Feed(FeedError::Canceled(_)))), "{ended:?}");
    let stored = Chain::read(&scene.door.store(), &chain.key).await.unwrap();
    assert_eq!(stored.head().get(), 22);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_in_the_end_for_what_was_never_written() {
    let scene = Scene::new();
    let chain = stored(&scene.door.store(), 100, &[(20, 110)]).await;
    let (start, news) = scene.start(chain).await;
    let mut recording = Recording::new(scene.session(), start, Post::Committer);
    let soon = Duration::from_secs(1);
    // This etcd answers no question for progress.
    recording.hear_until(20, Instant::now() + soon).await.unwrap();
    assert!(recording.hear_until(21, Instant::now() + soon).await.is_err(), "it is on its way");
    assert!(news.push(put(21)) && news.push(News::Progress(21)));
    recording.hear_until(21, Instant::now() + soon).await.unwrap();
    assert_eq!(recording.recorder.head(), 21);
}

#[tokio::test(start_paused = true)]
async fn what_is_closed_is_stored_in_the_end_though_etcd_hangs() {
    let member = Silent::start().await;
    let scene = Scene::new().beside(member.url());
    let chain = stored(&scene.door.store(), 100, &[(20, 110)]).await;
    let (start, news) = scene.start(chain).await;
    let mut recording = Recording::new(scene.session(), start, Post::Committer);
    assert!(news.push(put(21)) && news.push(put(22)));
    for _ in 0..2 {
        let heard = recording.feed.next().await.unwrap();
        recording.take(heard).await.unwrap();
    }
    let (_tell, stop) = watch::channel(true);
    recording.last_words(&Ok(Next::Stop), &mut Course::new(Retention::new(None)), stop).await;
    assert_eq!(recording.into_chain().map(|chain| chain.head().get()), Some(21));
}

#[tokio::test]
async fn a_generation_of_many_deltas_is_followed_by_another() {
    let scene = Scene::new();
    let mut chain = stored(&scene.door.store(), 100, &[(20, 110)]).await;
    chain.links = vec![chain.links[0].clone(); MOST_DELTAS + 1];
    let (start, _news) = scene.start(chain).await;
    let mut recording = Recording::new(scene.session(), start, Post::Committer);
    assert!(recording.full_is_due(None).await.unwrap().is_some_and(|reason| reason.contains("deltas")));
}

#[tokio::test]
async fn a_store_that_refuses_ends_no_session() {
    let scene = Scene::new();
    let chain = stored(&scene.door.store(), 100, &[(20, 110)]).await;
    let (start, _news) = scene.start(chain.clone()).await;
    let mut recording = Recording::new(scene.session(), start, Post::Standby);
    let failure = Failure { act: Act::Read, key: "key".into(), address: "s3://bucket".into() };
    let refused = StoreError::Refused { failure: Box::new(failure), detail: "403".into() };
    recording.chain = None;
    let done = (chain.clone(), Err(FlushError::Chain(ChainError::Store(refused))));
    assert_eq!(Box::pin(recording.done(done, &mut course())).await.unwrap(), None);
    assert_eq!(recording.into_chain(), Some(chain), "it is read on with the next look");
    assert_eq!(scene.board.read().fault.unwrap().reason, Reason::StoreRefused);
}

#[tokio::test]
async fn the_next_generation_is_told_what_was_learned_and_is_the_later_one() {
    let scene = Scene::new();
    let (store, session) = (scene.door.store(), scene.session());
    let old = stored(&store, 100, &[(11, AHEAD)]).await;
    let new = stored(&store, 300, &[]).await;
    let grant = |id| LeaseGrant { id, ttl: 60 };
    let (start, _news) = scene.start(old.clone()).await;
    let mut recording = Recording::new(session, start, Post::Committer);
    let (start, news) = scene.start(new.clone()).await;
    recording.successor.ready(start);
    recording.successor.learn(&[grant(5)]);
    recording.leases.learn(vec![grant(6)]);
    let mut course = course();
    assert_eq!(recording.go_over(&mut course), Some(Next::Continue));
    drop(recording);

    for revision in 11..=12 {
        assert!(news.push(put(revision)));
    }
    news.end(lost());
    let (_lead, leads) = watch::channel(true);
    let (_tell, stop) = watch::channel(false);
    let ended = Box::pin(session.run(None, &mut course, leads, stop)).await;
    assert!(matches!(ended, Err(ArchiveError::Feed(_))), "{ended:?}");
    let stored = Chain::read(&store, &new.key).await.unwrap();
    let delta = &stored.links.first().unwrap().delta;
    assert_eq!(delta.leases, [grant(5), grant(6)]);
    assert_eq!((delta.to.get(), stored.last_moment()), (11, at(AHEAD)));
}

/// From now on this file names somebody new.
fn name_another(file: &Path) -> Seal {
    let recipients = Identities::generate().recipients();
    fs::write(file, recipients.keys().first().unwrap().to_string()).unwrap();
    Seal::Age { recipients, writer: None }
}

/// A scene in which what is stored is encrypted to whom this file in the folder names.
fn encrypted() -> (Scene, TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recipients");
    let scene = Scene::new().encrypted_to(KeyFiles { recipients: Some(file.clone()), identity: None });
    (scene, folder, file)
}

/// Who records for whom the file names until it names others: its news, and both of these.
async fn for_the_former<'a>(scene: &'a Scene, file: &Path) -> (Recording<'a>, Arc<Backlog>, [Seal; 2]) {
    let old = name_another(file);
    let Seal::Age { recipients, writer: _ } = &old else { panic!("it is encrypted") };
    let mut chain = stored(&scene.door.store(), 100, &[]).await;
    chain.full.data.age = Some(Age { recipients: recipients.fingerprints(), bytes: 1 });
    let recorder = Recorder::new(chain.head(), old.event_hash().of(&[]), old.event_hash());
    let (start, news) = scene.start(chain).await;
    let start = Start { recorder, seal: old.clone(), ..start };
    let new = name_another(file);
    (Recording::new(scene.session(), start, Post::Committer), news, [old, new])
}

#[tokio::test]
async fn what_came_before_the_recipients_changed_is_stored_for_the_old_ones_and_a_full_snapshot_is_due() {
    let (scene, _folder, file) = encrypted();
    let (mut recording, news, [old, new]) = for_the_former(&scene, &file).await;
    for revision in 11..=13 {
        assert!(news.push(put(revision)));
    }
    news.end(lost());
    let (mut course, key) = (course(), recording.key.clone());
    let others = recording.other_recipients(&mut course.former);
    assert_eq!(others.as_ref(), Some(&new));
    assert_eq!(recording.full_is_due(others.as_ref()).await.unwrap(), Some(OTHER_RECIPIENTS));
    let (_lead, leads) = watch::channel(true);
    let (_tell, stop) = watch::channel(false);
    let ended = Box::pin(recording.run(&mut course, leads, stop)).await;
    assert!(matches!(ended, Err(ArchiveError::Feed(FeedError::Canceled(_)))), "{ended:?}");
    let stored = Chain::read(&scene.door.store(), &key).await.unwrap();
    assert_eq!(stored.head().get(), 12);
    assert!(old.is_of(stored.last_data()) && !new.is_of(stored.last_data()));
}

#[tokio::test]
async fn while_no_full_snapshot_for_others_succeeds_the_fault_tells_since_when_the_former_are_written_for() {
    let (scene, _folder, file) = encrypted();
    let (mut recording, _news, _) = for_the_former(&scene, &file).await;
    let (mut course, begun) = (course(), Timestamp::now());
    // Nobody reaches the member.
    Box::pin(recording.look(&mut course, true)).await.unwrap();
    let came = recording.successor.came().await;
    assert!(came.is_err());
    recording.succeed(came, &course.former).await.unwrap();
    let told = scene.board.read().fault.unwrap();
    assert_eq!(told.reason, Reason::MemberUnreadable);
    let (before, after) = told.message.split_once("Z: ").unwrap();
    let (before, since) = before.rsplit_once(' ').unwrap();
    assert!(before.ends_with("encrypted to the former recipients since") && !after.is_empty(), "{told:?}");
    let since: Timestamp = format!("{since}Z").parse().unwrap();
    assert!(since <= Timestamp::now() && since.duration_since(begun).as_secs() >= -1, "{since}");
    // It is told again with whatever is done, and does not begin anew.
    scene.board.well();
    let chain = recording.chain.take().unwrap();
    let did = Did::CaughtUp { post: Post::Committer, before: chain.head(), newer: None };
    assert_eq!(Box::pin(recording.done((chain, Ok(did)), &mut course)).await.unwrap(), None);
    assert_eq!(scene.board.read().fault.unwrap().message, told.message);
}
