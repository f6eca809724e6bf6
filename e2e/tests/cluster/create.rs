//! A cluster of each size on each line of etcd comes up, and everything that tells of it tells the truth.

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use quorate_e2e::scene::{PATIENCE, Scene, Stage, Wish, dial, play, told, usual_etcd, wait_for};
use serde_json::json;

use crate::roll::etcd_of;

/// Creates a cluster and demands that object, pods and etcd agree. `settles` compares members, ids, leader and versions.
async fn comes_up(scene: &Scene, replicas: u8, version: &str) -> Result<()> {
    let db = scene.create(&Wish::new("db", replicas).version(version)).await?;
    let membership = db.settles(replicas.into()).await?;
    db.put("hello", "world").await?;
    db.reads("hello", "world").await?;
    ensure!(membership.members.len() == usize::from(replicas), "{membership:?}");
    for (name, pod) in &db.view().await?.pods {
        let etcd = etcd_of(pod).with_context(|| format!("{name} has no status of etcd"))?;
        ensure!(etcd.restart_count == 0, "{name} needed {} more starts", etcd.restart_count);
    }
    // An election in between is no fault: what counts is that the status follows.
    wait_for("the status to name the leader", PATIENCE, async || {
        let (view, membership) = tokio::try_join!(db.view(), db.membership())?;
        let (named, leader) = (view.status().leader, membership.leader()?);
        ensure!(named.as_deref() == Some(leader), "the status says {named:?}, etcd {leader}");
        Ok(())
    })
    .await
}

macro_rules! comes_up {
    ($($(#[$attribute:meta])* $name:ident: $replicas:literal on $version:literal;)*) => {$(
        #[tokio::test]
        $(#[$attribute])*
        async fn $name() -> Result<()> {
            play(concat!("create_", stringify!($name)), Stage::Shared, async |scene| comes_up(scene, $replicas, $version).await).await
        }
    )*};
}

comes_up! {
    #[ignore = "make e2e"]
    one_member_on_3_5: 1 on "3.5.35";
    three_members_on_3_5: 3 on "3.5.35";
    #[ignore = "make e2e"]
    five_members_on_3_5: 5 on "3.5.35";
    #[ignore = "make e2e"]
    one_member_on_3_6: 1 on "3.6.16";
    three_members_on_3_6: 3 on "3.6.16";
    #[ignore = "make e2e"]
    five_members_on_3_6: 5 on "3.6.16";
    #[ignore = "make e2e"]
    one_member_on_3_7: 1 on "3.7.3";
    three_members_on_3_7: 3 on "3.7.3";
    #[ignore = "make e2e"]
    five_members_on_3_7: 5 on "3.7.3";
}

#[tokio::test]
async fn kubectl_get_reads_well_and_kubectl_scale_works() -> Result<()> {
    play("create_kubectl", Stage::Shared, async |scene| {
        let db = scene.create(&Wish::new("db", 3)).await?;
        db.settles(3).await?;
        // A member that is slow for a moment is shown as well.
        wait_for("the table of a cluster that is as asked for", PATIENCE, async || {
            let table = scene.kubectl(&["get", "etcd"]).await?.well()?;
            let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
            let [head, row] = lines.as_slice() else { anyhow::bail!("not one cluster in\n{table}") };
            let wanted = ["NAME", "VERSION", "DESIRED", "READY", "PHASE", "AVAILABLE"];
            ensure!(head.len() == 7 && head[..6] == wanted && head[6] == "AGE", "the columns are {head:?}");
            let version = usual_etcd();
            ensure!(row[..6] == ["db", version.as_str(), "3", "3", "Running", "True"], "the row is {row:?}");
            Ok(())
        })
        .await?;
        scene.kubectl(&["scale", "etcd/db", "--replicas=5"]).await?.well()?;
        db.settles(5).await?;
        let all = scene.kubectl(&["get", "quorate"]).await?.well()?;
        ensure!(all.contains("db"), "the category does not list the cluster:\n{all}");
        scene.kubectl(&["wait", "etcd/db", "--for=condition=Ready", "--timeout=60s"]).await?.well()?;
        Ok(())
    })
    .await
}

/// A leader keeps this many entries for those that lag (etcd server/etcdserver/server.go, SnapshotCatchUpEntries), so who
/// joins after more gets a snapshot of its database instead.
const ENTRIES_KEPT: usize = 5_000;
/// Writers at a time: with them the entries above take seconds.
const WRITERS: usize = 64;

/// A learner of 3.5 that got a snapshot never counts itself as a learner on its metrics port: it knows that only from the
/// entry that added it (server/etcdserver/server.go, applyConfChange). It has to become a voter all the same.
#[tokio::test]
#[ignore = "make e2e"]
async fn learners_that_join_by_a_snapshot_become_voters() -> Result<()> {
    play("create_snapshot", Stage::Shared, async |scene| {
        let wish = Wish::new("db", 1).version("3.5.35").with("/etcd/snapshotCount", json!(100));
        let db = scene.create(&wish).await?;
        db.settles(1).await?;
        db.put("hello", "world").await?;
        for door in db.voters_doors().await?.values() {
            let client = dial(door).await?;
            let writers = (0..WRITERS).map(|writer| {
                let mut client = client.clone();
                async move {
                    for _ in 0..ENTRIES_KEPT * 6 / 5 / WRITERS {
                        // One more entry where an answer is late does no harm.
                        wait_for("a write", PATIENCE, async || {
                            client.put(format!("key-{writer}"), "value", None).await.map_err(told)
                        })
                        .await?;
                    }
                    anyhow::Ok(())
                }
            });
            try_join_all(writers).await?;
        }
        db.scale(3).await?;
        db.settles(3).await?;
        db.reads("hello", "world").await
    })
    .await
}
