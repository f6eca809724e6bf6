//! Restores of what was recorded, by the agent in pods, and whether etcd's own hash of what came is that of the live history. They
//! do not judge where that should end.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::jiff::Timestamp;
use quorate_crds::BackupState;
use quorate_e2e::scene::{Cluster, Gateway, PATIENCE, Scene, wait_for};
use serde_json::{Value, json};

use crate::archive;

/// How many restores one pod makes. What they restore, some 230 MB each, stays on the node as long as the pod.
const AT_A_TIME: usize = 5;
/// The memory that a restore gets: less than half of what it restores.
const MEMORY: &str = "128Mi";
/// Who tells the hash of what was restored.
const ETCD_IMAGE: &str = "quay.io/coreos/etcd:v3.6.16";

/// What is restored.
#[derive(Clone, Copy, Debug)]
pub enum Point {
    Revision(i64),
    Time(Timestamp),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Revision(revision) => write!(f, "{revision}"),
            Self::Time(time) => write!(f, "{time}"),
        }
    }
}

/// What came of a restore.
#[derive(Clone, Copy, Debug)]
pub struct Restored {
    pub revision: i64,
    /// etcd's own hash of all that is in the database.
    pub hash: u64,
}

impl Restored {
    /// What the containers of this number have told.
    fn read(logs: &BTreeMap<String, String>, number: usize) -> Result<Self> {
        let (restore, hash) = (&logs[&format!("restore-{number}")], &logs[&format!("hash-{number}")]);
        // It warns on its other output, and a log has both.
        let document = restore.find('{').map(|begin| &restore[begin..]).unwrap_or_default();
        let came_to: Value = serde_json::from_str(document).with_context(|| restore.clone())?;
        let line = hash.lines().last().unwrap_or_default();
        let found: Value = serde_json::from_str(line).with_context(|| hash.clone())?;
        let revision = came_to["revision"].as_i64().with_context(|| restore.clone())?;
        Ok(Self { revision, hash: found["hash"].as_u64().with_context(|| hash.clone())? })
    }
}

/// A pod that restores these one after the other, and then hashes each.
fn restores(name: &str, gateway: &Gateway, lineage: &str, points: &[Point]) -> Value {
    let restore = |(number, point): (usize, &Point)| {
        json!({
            "name": format!("restore-{number}"),
            "image": "quorate.dev/agent:dev",
            "command": [
                "/quorate-agent", "restore", format!("--lineage={lineage}"), format!("--to={point}"),
                format!("--database=/scratch/{number}"), "--output=json",
            ],
            "resources": { "limits": { "memory": MEMORY } },
        })
    };
    // Of the whole database: what was restored beyond the revision shows, too.
    let hash = |number: usize| {
        json!({
            "name": format!("hash-{number}"),
            "image": ETCD_IMAGE,
            "command": ["etcdutl", "hashkv", format!("/scratch/{number}"), "-w=json"],
        })
    };
    let restores: Vec<_> = points.iter().enumerate().map(restore).collect();
    let hashes: Vec<_> = (0..points.len()).map(hash).collect();
    archive::agent_pod(name, &gateway.store("s3"), &json!({ "initContainers": restores, "containers": hashes }))
}

/// Restores each of these.
pub async fn restore(
    scene: &Scene,
    gateway: &Gateway,
    state: &BackupState,
    points: &[Point],
) -> Result<Vec<(Point, Restored)>> {
    let mut restored = Vec::new();
    for (turn, points) in points.chunks(AT_A_TIME).enumerate() {
        let pod = restores(&format!("restores-{turn}"), gateway, &state.lineage, points);
        let logs = archive::run(scene, &pod).await?;
        for (number, point) in points.iter().enumerate() {
            let came_to =
                Restored::read(&logs, number).with_context(|| format!("failed to restore {point}: {logs:#?}"))?;
            restored.push((*point, came_to));
        }
    }
    Ok(restored)
}

/// Demands that what was restored is the live history, up to where it ends.
pub async fn is_the_live_history(db: &Cluster, (point, restored): (Point, Restored)) -> Result<()> {
    let Restored { revision, hash } = restored;
    let live = wait_for("a hash of the history", PATIENCE, async || {
        db.ask(async |etcd| Ok(etcd.hash_kv(revision).await?.hash())).await
    })
    .await?;
    ensure!(hash == u64::from(live), "{point} restored to {revision} with the hash {hash}, etcd says {live}");
    Ok(())
}
