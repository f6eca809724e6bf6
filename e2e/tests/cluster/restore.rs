//! Clusters that begin with a backup: everything comes back, whatever happens in between; and nothing starts on less than all
//! of it.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use etcd_client::{Client, Permission, PutOptions, UserAddOptions, WatchOptions, WatchResponse, WatchStream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use quorate_crds::{BackupPhase, ConditionType, EtcdBackupStatus, Phase, names};
use quorate_e2e::faults::{pods, processes};
use quorate_e2e::lab::BOUNDED_STORAGE_CLASS;
use quorate_e2e::scene::{
    Cluster, Gateway, Held, PATIENCE, Scene, Stage, Wish, etcd_processes, play, stays, told, wait_for,
};
use rustix::fs::{FallocateFlags, fallocate};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::past::recorded;
use crate::{archive, backup, roll};

/// A revision that no cluster here reaches by itself: restored ones begin above it.
const BUMP: i64 = 1_000_000_000;
/// How long a pod may take to see a Secret that was changed: the kubelet looks once a minute or so.
pub const SECRET_PATIENCE: Duration = Duration::from_mins(4);
/// For how long a store is let go on at a time, so that of 64 MiB some is fetched, and not all.
const MOMENT: Duration = Duration::from_millis(10);
/// Where a restore works until all is there, as its own process sees the volume.
const RESTORING: &str = "var/lib/etcd/.data.restoring/db";

/// A role that may read this key and no other, and a user who has it, with a password.
const READER: &str = "reader";
const READABLE: &str = "key/020";
const PASSWORD: &str = "known-before-the-backup";

/// What is on a volume that no restore takes for a member's.
const ELSEWHERE: &str = "var/lib/etcd/lost+found";
/// So much of it that of 1Gi too little is left for a restore.
const TAKEN: u64 = 960 << 20;

/// Keys of several versions, some deleted and created again, some on leases; users and roles.
pub async fn fill(db: &Cluster, restored: &str) -> Result<()> {
    let clients = [names::client_secret(db.name()), names::client_secret(restored), "root".to_owned()];
    db.ask_patiently(async |client| write(client, &clients).await).await
}

async fn write(client: &mut Client, users: &[String]) -> Result<()> {
    for round in 0..3 {
        for key in 0..40 {
            let value = vec![b'a' + round; 10 + usize::from(round) * 300];
            client.put(format!("key/{key:03}"), value, None).await?;
        }
    }
    for key in 0..10 {
        client.delete(format!("key/{key:03}"), None).await?;
    }
    client.put("key/000", "again", None).await?;
    for lease in 1..=3 {
        let ttl = lease * 3_600;
        client.lease_grant(ttl, Some(etcd_client::LeaseGrantOptions::new().with_id(1_000 + lease))).await?;
        let on_lease = PutOptions::new().with_lease(1_000 + lease);
        client.put(format!("leased/{lease}"), "x", Some(on_lease)).await?;
    }
    client.role_add(READER).await?;
    client.role_grant_permission(READER, Permission::read(READABLE)).await?;
    client.user_add(READER, PASSWORD, None).await?;
    client.user_grant_role(READER, READER).await?;
    for user in users {
        client.user_add(user.clone(), "", Some(UserAddOptions::new().with_no_pwd())).await?;
        client.user_grant_role(user.clone(), "root").await?;
    }
    Ok(())
}

/// Takes the EtcdBackup `b` of a cluster to which nobody writes: what it says once it is complete, and what the cluster held.
pub async fn backup(db: &Cluster, store: &Value) -> Result<(EtcdBackupStatus, Held)> {
    let (scene, contents) = (db.scene(), db.contents().await?);
    scene.apply(&backup::backup("b", store)).await?.well()?;
    let status = backup::shows(scene, "b", BackupPhase::Complete, "BackupComplete").await?;
    Ok((status, db.held(contents).await?))
}

/// A cluster of this size that holds something, for a backup that another one begins with.
pub async fn filled(scene: &Scene, replicas: u8, restored: &str) -> Result<Cluster> {
    let db = scene.create(&Wish::new("db", replicas)).await?;
    db.settles(replicas.into()).await?;
    fill(&db, restored).await?;
    Ok(db)
}

/// Takes a backup of a cluster into a store; what it held. The cluster is gone.
async fn backed_up(scene: &Scene, store: &Value, restored: &str) -> Result<Held> {
    let db = filled(scene, 1, restored).await?;
    let (_, held) = backup(&db, store).await?;
    db.delete().await?;
    Ok(held)
}

/// A cluster that begins with that backup.
pub fn from_backup(name: &str, replicas: u8) -> Wish {
    Wish::new(name, replicas).with("/bootstrap/restore/backup", json!({ "name": "b" }))
}

/// Demands that a cluster that has just been restored holds what was backed up, on every member, and hands out later revisions
/// only.
pub async fn holds(cluster: &Cluster, Held { revision, contents: held, hash }: &Held) -> Result<()> {
    let (now, contents) = cluster.contents().await?;
    ensure!(contents.leases == held.leases, "leases {:?}, before {:?}", contents.leases, held.leases);
    ensure!(contents.users == held.users && contents.roles == held.roles, "{contents:?}, before {held:?}");
    for (key, entry) in &held.entries {
        let found = contents.entries.get(key);
        ensure!(found == Some(entry), "{}: {found:?}, before {entry:?}", String::from_utf8_lossy(key));
    }
    ensure!(contents.entries.len() == held.entries.len(), "{} keys", contents.entries.len());
    ensure!(now >= revision + BUMP, "the revision is {now}, and was {revision}");
    cluster.has_history_of(*hash).await?;
    cluster.put("after", "the restore").await?;
    let (_, after) = cluster.contents().await?;
    let put = after.entries.get("after".as_bytes()).context("what was put is not there")?;
    ensure!(put.changed > now, "revision {} was handed out after {now}", put.changed);
    cluster.hashes_agree().await?;
    cluster.ask(async |client| watches_go_up(client, *revision).await).await
}

/// Demands of watches that revisions only go up: one that goes on from where it was before the restore is told to begin
/// anew, and one that begins where it is told sees later revisions only, each in its turn.
async fn watches_go_up(client: &mut Client, before: i64) -> Result<()> {
    let told = next(&mut watch(client, before + 1).await?).await?;
    ensure!(told.canceled() && told.compact_revision() >= before + BUMP, "{told:?}, the revision was {before}");
    let mut last = told.compact_revision();
    let mut stream = watch(client, last + 1).await?;
    for round in 0..3 {
        let put = client.put("watched", round.to_string(), None).await?;
        let put = put.header().context("an answer without a header")?.revision();
        while last < put {
            for event in next(&mut stream).await?.events() {
                let revision = event.kv().context("an event without a key")?.mod_revision();
                ensure!(revision > last, "revision {revision} is seen after {last}");
                last = revision;
            }
        }
    }
    Ok(())
}

/// Watches all keys from a revision on.
async fn watch(client: &mut Client, from: i64) -> Result<WatchStream> {
    let mut stream = client.watch("", Some(WatchOptions::new().with_all_keys().with_start_revision(from))).await?;
    let first = next(&mut stream).await?;
    ensure!(first.created(), "{first:?}");
    Ok(stream)
}

async fn next(stream: &mut WatchStream) -> Result<WatchResponse> {
    let message = tokio::time::timeout(PATIENCE, stream.message()).await.context("the watch is silent")?;
    message?.context("the watch has ended")
}

/// Waits until the cluster says why the restore does not go on, and demands that no etcd runs.
pub async fn says(cluster: &Cluster, reason: &str, part: &str, patience: Duration) -> Result<()> {
    cluster
        .until(&format!("the restore to say {reason}"), patience, |view| {
            let stalled = view.condition(ConditionType::Stalled).context("no Stalled")?;
            ensure!(stalled.status == "True" && stalled.reason == reason, "it says {}", stalled.reason);
            ensure!(stalled.message.contains(part), "it says {}", stalled.message);
            ensure!(view.phase() == Some(Phase::Restoring), "another phase");
            Ok(())
        })
        .await?;
    let running = etcd_processes(cluster.scene().namespace());
    ensure!(running.is_empty(), "{running:?} run");
    Ok(())
}

/// Flips a bit in the middle of a file; twice is not at all.
pub fn flip(path: &Path) -> Result<()> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    let (mut byte, middle) = ([0], file.metadata()?.len() / 2);
    file.read_exact_at(&mut byte, middle)?;
    file.write_all_at(&[byte[0] ^ 1], middle)?;
    Ok(())
}

#[tokio::test]
async fn a_cluster_of_three_begins_with_a_backup_of_another() -> Result<()> {
    play("restore_volume", Stage::Shared, async |scene| {
        let store = backup::volume(scene).await?;
        let db = filled(scene, 3, "restored").await?;
        let (status, held) = backup(&db, &store).await?;
        db.delete().await?;
        let whose = format!("--lineage={}", status.lineage.context("the status has no lineage")?);
        let listed = backup::agent(scene, "list", &["list", &whose]).await?;
        ensure!(archive::states(&listed) == [Some("whole")], "{listed}");
        let restored = scene.create(&from_backup("restored", 3)).await?;
        restored.settles(3).await?;
        holds(&restored, &held).await?;
        roll::is_told(&restored, "Restored", &[]).await?;
        // What it began with is not asked for again, whatever becomes of the seed's pod.
        scene.kubectl(&["delete", "etcdbackup", "b"]).await?.well()?;
        pods::delete_by_force(&restored, &["restored-0"]).await?;
        wait_for("the seed's pod to be made anew", PATIENCE, async || {
            let seed: Pod = scene.api().get("restored-0").await?;
            let spec = seed.spec.context("a pod without a spec")?;
            let fills = spec.init_containers.iter().flatten().any(|container| container.name == "restore");
            ensure!(!fills, "it still restores");
            Ok(())
        })
        .await?;
        restored.settles(3).await?;
        let refused = scene.apply(&Wish::new("restored", 3).object()).await?.refused()?;
        ensure!(refused.contains("spec.bootstrap can't be changed"), "{refused}");
        Ok(())
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn the_operator_works_on_where_users_are_turned_on() -> Result<()> {
    play("restore_users", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = filled(scene, 1, "restored").await?;
        db.ask(async |client| Ok(client.auth_enable().await.map(drop)?)).await?;
        let (_, held) = backup(&db, &gateway.store("s3")).await?;
        db.scale(3).await?;
        db.settles(3).await?;
        db.delete().await?;
        let restored = scene.create(&from_backup("restored", 3)).await?;
        restored.settles(3).await?;
        holds(&restored, &held).await?;
        reader_is_known(&restored).await
    })
    .await
}

/// Demands that the user who reads has the password of before, and may do what was granted before.
async fn reader_is_known(restored: &Cluster) -> Result<()> {
    let pod = format!("{}-0", restored.name());
    let etcdctl = async |password: &str, arguments: &[&str]| {
        let user = format!("--user={READER}:{password}");
        let exec = ["exec", &pod, "-c", "etcd", "--", "etcdctl", &user];
        restored.scene().kubectl(&[&exec, arguments].concat()).await
    };
    let read = etcdctl(PASSWORD, &["get", READABLE, "--print-value-only"]).await?.well()?;
    ensure!(read.starts_with("cccc"), "{read}");
    for refused in [&["put", READABLE, "x"][..], &["get", "key/021"]] {
        let why = etcdctl(PASSWORD, refused).await?.refused()?;
        ensure!(why.contains("permission denied"), "{why}");
    }
    let why = etcdctl("another", &["get", READABLE]).await?.refused()?;
    ensure!(why.contains("authentication failed"), "{why}");
    Ok(())
}

/// The UID of a pod that restores just now.
async fn restoring(scene: &Scene, name: &str) -> Result<String> {
    let pod: Pod = scene.api().get(name).await?;
    let mut inits = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
    let restore = inits.find(|one| one.name == "restore").context("it does not restore")?;
    ensure!(restore.state.as_ref().is_some_and(|state| state.running.is_some()), "it has not begun");
    pod.metadata.uid.context("a pod without a UID")
}

/// A path in the pod that restores, as this machine sees it.
fn in_restore(uid: &str, path: &str) -> Result<PathBuf> {
    let running = processes::in_pod(uid, "quorate-agent");
    let [pid] = running.as_slice() else { bail!("{running:?} run in the pod") };
    Ok(Path::new("/proc").join(pid.to_string()).join("root").join(path))
}

/// How much of a database a restore in this pod has put on the volume.
fn on_volume(uid: &str) -> Result<u64> {
    let database = in_restore(uid, RESTORING)?;
    let found = std::fs::metadata(&database).with_context(|| format!("there is no {}", database.display()))?;
    ensure!(found.len() > 0, "there is nothing yet");
    Ok(found.len())
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_restore_that_was_killed_is_repeated_and_a_member_lost_after_it_is_replaced() -> Result<()> {
    play("restore_killed", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = filled(scene, 1, "restored").await?;
        backup::grow(&db).await?;
        let (taken, held) = backup(&db, &gateway.store("s3")).await?;
        db.delete().await?;
        gateway.pause(true)?;
        let restored = scene.create(&from_backup("restored", 3)).await?;
        let first = wait_for("the restore to begin", PATIENCE, async || restoring(scene, "restored-0").await).await?;
        let part = wait_for("some of it to be on the volume", PATIENCE, async || {
            gateway.pause(false)?;
            sleep(MOMENT).await;
            gateway.pause(true)?;
            on_volume(&first)
        })
        .await?;
        let all = taken.database_bytes.context("the status has no size")?;
        ensure!(i64::try_from(part)? < all, "all {all} bytes are there");
        eprintln!("{part} of {all} bytes are there");
        scene.api::<Pod>().delete("restored-0", &DeleteParams::default().grace_period(0)).await?;
        let second = wait_for("the restore to begin again", PATIENCE, async || {
            let uid = restoring(scene, "restored-0").await?;
            ensure!(uid != first, "it is the first one");
            Ok(uid)
        })
        .await?;
        ensure!(etcd_processes(scene.namespace()).is_empty(), "etcd runs: {second}");
        gateway.pause(false)?;
        let before = restored.settles(3).await?;
        holds(&restored, &held).await?;
        let lost = before.leader()?.to_owned();
        pods::lose_volumes(&restored, &[&lost]).await?;
        restored.settles_without(&lost, 3).await?;
        restored.reads("after", "the restore").await?;
        restored.hashes_agree().await.map(drop)
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_restore_on_a_full_volume_says_so_and_goes_on_once_that_is_larger() -> Result<()> {
    play("restore_full", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let held = backed_up(scene, &gateway.store("s3"), "restored").await?;
        gateway.pause(true)?;
        let bounded = from_backup("restored", 3).with("/storage/storageClassName", json!(BOUNDED_STORAGE_CLASS));
        let restored = scene.create(&bounded).await?;
        let seed = wait_for("the restore to begin", PATIENCE, async || restoring(scene, "restored-0").await).await?;
        let elsewhere = in_restore(&seed, ELSEWHERE)?;
        std::fs::create_dir(&elsewhere)?;
        fallocate(std::fs::File::create(elsewhere.join("much"))?, FallocateFlags::empty(), 0, TAKEN)?;
        gateway.pause(false)?;
        says(&restored, "NoRoomToRestore", "make spec.storage.size larger", PATIENCE).await?;
        restored.patch(json!({ "spec": { "storage": { "size": "2Gi" } } })).await?;
        restored.settles(3).await?;
        holds(&restored, &held).await
    })
    .await
}

/// A quota below what was written, and above what is live; and one below that.
const QUOTA: &str = "40Mi";
const TOO_LITTLE: &str = "16Mi";
/// Versions of one key, and keys with one version, each of a mebibyte: together above the quota, the latter above the lesser
/// one.
const VERSIONS: u8 = 40;
const LIVE: u8 = 20;

#[tokio::test]
#[ignore = "make e2e"]
async fn what_is_above_the_quota_is_foreseen_and_what_is_live_comes_back_into_a_smaller_one() -> Result<()> {
    play("restore_quota", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let db = filled(scene, 1, "restored").await?;
        db.ask_patiently(async |client| {
            for byte in 0..VERSIONS {
                client.put("large", vec![byte; 1 << 20], None).await?;
            }
            for byte in 0..LIVE {
                client.put(format!("live/{byte}"), vec![byte; 1 << 20], None).await?;
            }
            Ok(())
        })
        .await?;
        // Whoever compares compacts: the backup has to have the history.
        let contents = db.contents().await?;
        scene.apply(&backup::backup("b", &gateway.store("s3"))).await?.well()?;
        backup::shows(scene, "b", BackupPhase::Complete, "BackupComplete").await?;
        let held = db.held(contents).await?;
        db.delete().await?;
        let restored = |quota: &str| from_backup("restored", 3).with("/etcd/quota", json!(quota));
        let small = scene.create(&restored(TOO_LITTLE)).await?;
        says(&small, "AboveQuota", "make spec.etcd.quota", PATIENCE).await?;
        small.delete().await?;
        let restored = scene.create(&restored(QUOTA)).await?;
        restored.settles(3).await?;
        let size = restored.ask(async |client| Ok(client.status().await.map_err(told)?.db_size())).await?;
        ensure!(size < i64::from(LIVE + VERSIONS / 4) << 20, "it has {size} bytes: some of its history came back, too");
        holds(&restored, &held).await?;
        restored
            .ask_patiently(async |client| {
                for byte in 0..VERSIONS / 4 {
                    client.put("large", vec![byte; 1 << 20], None).await?;
                }
                Ok(())
            })
            .await?;
        restored.settles(3).await.map(drop)
    })
    .await
}

/// What may become of an object.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// Half of it is left.
    Truncated,
    /// Another one is in its place.
    Swapped,
    /// It is not there.
    Missing,
}

impl Damage {
    fn of(self, object: &Path, other: &Path) -> Result<()> {
        match self {
            Self::Truncated => {
                let file = std::fs::File::options().write(true).open(object)?;
                file.set_len(file.metadata()?.len() / 2)?;
            }
            // The store keeps its own notes of an object beside the content, which stay.
            Self::Swapped => std::fs::write(object, std::fs::read(other)?)?,
            Self::Missing => std::fs::rename(object, object.with_extension("away"))?,
        }
        Ok(())
    }

    fn mend(self, object: &Path, sound: &[u8]) -> Result<()> {
        match self {
            Self::Truncated | Self::Swapped => std::fs::write(object, sound)?,
            Self::Missing => std::fs::rename(object.with_extension("away"), object)?,
        }
        Ok(())
    }
}

/// The first and the last of what a store has of a kind, by when they were written.
fn first_and_last(mut objects: Vec<PathBuf>) -> Result<[PathBuf; 2]> {
    objects.sort_by_key(|path| std::fs::metadata(path).and_then(|found| found.modified()).ok());
    let [first, .., last] = objects.as_slice() else { bail!("only {objects:?}") };
    Ok([first.clone(), last.clone()])
}

#[tokio::test]
#[ignore = "make e2e"]
async fn a_part_that_is_cut_short_exchanged_or_gone_is_named_and_nothing_starts() -> Result<()> {
    play("restore_damaged", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        let db = archive::begin(scene, &gateway).await?;
        for number in 0..3 {
            db.put(&format!("key/{number}"), "x").await?;
            archive::leader_records(&db, None, archive::revision(&db).await?, PATIENCE).await?;
        }
        let held = recorded(&db).await?;
        let lineage = archive::is_healthy(&db, true).await?.lineage;
        db.delete().await?;
        let restore = json!({ "store": gateway.store("s3"), "lineage": lineage });
        let wish = |replicas| Wish::new("restored", replicas).with("/bootstrap/restore", restore.clone());

        let [data, manifests] = ["/d/", "/m/"].map(|part| first_and_last(gateway.objects(part)?));
        let ([full, last], [first, next]) = (data?, manifests?);
        for (object, other, how) in [
            (&full, &last, Damage::Truncated),
            (&full, &last, Damage::Swapped),
            (&last, &full, Damage::Truncated),
            (&last, &full, Damage::Swapped),
            (&first, &next, Damage::Truncated),
            (&first, &next, Damage::Swapped),
            (&first, &next, Damage::Missing),
        ] {
            let (sound, name) = (std::fs::read(object)?, object.file_name().context("an object without a name")?);
            how.of(object, other)?;
            let restored = scene.create(&wish(1)).await?;
            let said = says(&restored, "BackupDamaged", &name.to_string_lossy(), PATIENCE).await;
            said.with_context(|| format!("{how:?} {}", object.display()))?;
            restored.delete().await?;
            how.mend(object, &sound)?;
        }
        let restored = scene.create(&wish(3)).await?;
        restored.settles(3).await?;
        holds(&restored, &held).await
    })
    .await
}

#[tokio::test]
#[ignore = "make e2e"]
async fn what_keeps_a_restore_from_going_on_is_named_and_once_mended_it_does() -> Result<()> {
    play("restore_mended", Stage::Shared, async |scene| {
        let gateway = Gateway::start().await?;
        // No backup, then one that waits for its cluster.
        let restored = scene.create(&from_backup("restored", 3)).await?;
        says(&restored, "BackupMissing", "There is no EtcdBackup b", PATIENCE).await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        let held = backed_up(scene, &gateway.store("s3"), "other").await?;
        restored.settles(3).await?;
        holds(&restored, &held).await?;
        restored.delete().await?;
        // The Secret is gone; then it is there, and wrong.
        scene.kubectl(&["delete", "secret", "s3"]).await?.well()?;
        let object = gateway.object("/d/")?;
        let name = object.file_name().context("an object without a name")?.to_string_lossy().into_owned();
        let away = object.with_extension("away");
        std::fs::rename(&object, &away)?;
        let again = scene.create(&from_backup("again", 3)).await?;
        says(&again, "SecretMissing", "There is no Secret s3", PATIENCE).await?;
        scene.apply(&Gateway::credentials("s3", false)).await?.well()?;
        says(&again, "StoreRefused", "the store refuses the credentials", PATIENCE).await?;
        scene.apply(&Gateway::credentials("s3", true)).await?.well()?;
        // A part of the backup is missing, then damaged; nothing starts on what is left.
        says(&again, "BackupDamaged", &name, SECRET_PATIENCE).await?;
        std::fs::rename(&away, &object)?;
        flip(&object)?;
        says(&again, "BackupDamaged", "frame 0 of", PATIENCE).await?;
        stays("nothing starts", Duration::from_secs(5), async || {
            ensure!(etcd_processes(scene.namespace()).is_empty(), "etcd runs");
            Ok(())
        })
        .await?;
        flip(&object)?;
        again.settles(3).await?;
        holds(&again, &held).await
    })
    .await
}
