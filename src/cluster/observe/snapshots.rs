//! The snapshots that are taken before a cluster goes to another minor version, as their EtcdBackups show them. Only
//! reading; what follows from it is the plan's business.

use std::collections::BTreeMap;

use kube::ResourceExt;
use quorate_crds::{BackupPhase, EtcdBackup, EtcdCluster, names};
use quorate_statemachine::{Minor, Saved};

use super::facts::owner_of;

/// An EtcdBackup of a cluster's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFacts {
    /// Its name.
    pub name: String,
    /// The UID of the object that owns it.
    pub owner: Option<String>,
    /// The minor before which it is taken.
    pub before: Minor,
    /// What has come of it.
    pub saved: Saved,
    /// Its message.
    pub words: String,
}

impl SnapshotFacts {
    /// What matters of it; `None` of a backup for any other end, and of one that is being deleted.
    pub fn of(backup: &EtcdBackup) -> Option<Self> {
        if backup.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let status = backup.status.as_ref();
        let ready = status.and_then(|status| status.conditions.iter().find(|condition| condition.type_ == "Ready"));
        Some(Self {
            name: backup.name_any(),
            owner: owner_of(backup),
            before: Minor::parse(backup.annotations().get(names::ANNOTATION_BEFORE)?)?,
            saved: match status.and_then(|status| status.phase) {
                Some(BackupPhase::Complete) => Saved::Taken,
                Some(BackupPhase::Failed) => Saved::Failed,
                Some(BackupPhase::Pending | BackupPhase::Running | BackupPhase::Deleting) | None => Saved::UnderWay,
            },
            words: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
        })
    }
}

/// Those of this very object, and of its spec as it is now: another spec is another upgrade.
pub fn of_cluster(cluster: &EtcdCluster, all: BTreeMap<String, SnapshotFacts>) -> BTreeMap<Minor, SnapshotFacts> {
    let generation = cluster.metadata.generation.unwrap_or_default();
    let named = |facts: &SnapshotFacts| {
        names::snapshot_before(&cluster.name_any(), &facts.before.to_string(), generation) == facts.name
    };
    let own = all.into_values().filter(|facts| facts.owner == cluster.metadata.uid && named(facts));
    own.map(|facts| (facts.before, facts)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn backup(name: &str, change: impl Fn(&mut Value)) -> EtcdBackup {
        let mut object = json!({
            "metadata": { "name": name, "annotations": { "quorate.dev/before-version": "3.7" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "x", "name": "db", "uid": "uid-1", "controller": true }] },
            "spec": { "cluster": "db", "store": { "address": "s3://bucket" } },
            "status": { "phase": "Failed", "conditions": [{ "type": "Ready", "status": "False", "reason": "JobFailed",
                "message": "no such bucket", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    fn seen(backup: &EtcdBackup) -> BTreeMap<Minor, SnapshotFacts> {
        let cluster: EtcdCluster = serde_json::from_value(json!({
            "metadata": { "name": "db", "uid": "uid-1", "generation": 4 }, "spec": {} }))
        .unwrap();
        of_cluster(&cluster, SnapshotFacts::of(backup).map(|facts| (facts.name.clone(), facts)).into_iter().collect())
    }

    #[test]
    fn its_phase_says_what_has_come_of_it() {
        for (phase, saved) in [
            (json!("Complete"), Saved::Taken),
            (json!("Failed"), Saved::Failed),
            (json!("Running"), Saved::UnderWay),
            (json!("Pending"), Saved::UnderWay),
            (json!("Unheard"), Saved::UnderWay),
            (Value::Null, Saved::UnderWay),
        ] {
            let seen = seen(&backup("db-to-3-7-4", |object| object["status"]["phase"] = phase.clone()));
            assert_eq!(seen.get(&Minor(7)).map(|facts| facts.saved), Some(saved), "{phase}");
        }
    }

    #[test]
    fn only_that_of_this_object_and_this_spec_counts() {
        let told = seen(&backup("db-to-3-7-4", |_| ()));
        assert_eq!(told.get(&Minor(7)).map(|facts| facts.words.as_str()), Some("no such bucket"));
        assert!(seen(&backup("db-to-3-7-3", |_| ())).is_empty(), "of an earlier spec");
        let of = |change: fn(&mut Value)| seen(&backup("db-to-3-7-4", change));
        assert!(of(|object| object["metadata"]["ownerReferences"][0]["uid"] = "uid-2".into()).is_empty());
        assert!(of(|object| object["metadata"]["annotations"] = json!({})).is_empty(), "of a user's own");
        assert!(of(|object| object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into()).is_empty());
    }
}
