//! The snapshots that are taken before a cluster goes to another minor version, as their EtcdBackups show them. Only
//! reading; what follows from it is the plan's business.

use std::collections::BTreeMap;

use kube::ResourceExt;
use quorate_crds::{BackupPhase, BackupStore, ConditionType, EtcdBackup, EtcdCluster, names};
use quorate_statemachine::{Millis, Minor, Saved};

use super::facts::millis;
use crate::ownership::owner_uid;

/// How long after its end a snapshot counts that was ordered under an earlier spec: whoever changes something else while
/// it is being taken does not wait for another one.
const FRESH_MS: u64 = 10 * 60 * 1000;

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
    /// When it was complete, or had failed.
    pub ended: Option<Millis>,
    /// Where it is kept.
    pub store: BackupStore,
    /// Its message.
    pub words: String,
}

impl SnapshotFacts {
    /// What matters of it; `None` of a backup for any other end. One that is being deleted is waited for: only then
    /// another one of its name can be made.
    pub fn of(backup: &EtcdBackup) -> Option<Self> {
        let going = backup.metadata.deletion_timestamp.is_some();
        let status = backup.status.as_ref();
        let ready = status.and_then(|status| ConditionType::Ready.among(&status.conditions));
        Some(Self {
            name: backup.name_any(),
            owner: owner_uid(backup),
            before: Minor::parse(backup.annotations().get(names::ANNOTATION_BEFORE)?)?,
            ended: status.and_then(|status| status.ended_at.as_ref()).map(|time| millis(time.0)),
            store: backup.spec.store.clone(),
            saved: match status.and_then(|status| status.phase).filter(|_| !going) {
                Some(BackupPhase::Complete) => Saved::Taken,
                Some(BackupPhase::Failed) => Saved::Failed,
                Some(BackupPhase::Pending | BackupPhase::Running | BackupPhase::Deleting) | None => Saved::UnderWay,
            },
            words: ready.map(|ready| ready.message.clone()).unwrap_or_default(),
        })
    }
}

/// Those of this very object in its present store, by minor: the one of its spec as it is now, or else one of an earlier
/// spec that is being taken or was just taken.
pub fn of_cluster(
    cluster: &EtcdCluster,
    all: BTreeMap<String, SnapshotFacts>,
    now: Millis,
) -> BTreeMap<Minor, SnapshotFacts> {
    let Some(backup) = &cluster.spec.backup else { return BTreeMap::new() };
    let generation = cluster.metadata.generation.unwrap_or_default();
    let mut found = BTreeMap::new();
    let own = all.into_values().filter(|facts| facts.owner == cluster.metadata.uid && facts.store == backup.store);
    for facts in own {
        let current = facts.name == names::snapshot_before(&cluster.name_any(), &facts.before.to_string(), generation);
        let counts = match facts.saved {
            Saved::UnderWay => true,
            Saved::Taken => facts.ended.is_some_and(|ended| now.since(ended) <= FRESH_MS),
            Saved::Failed => false,
        };
        if current {
            found.insert(facts.before, facts);
        } else if counts {
            found.entry(facts.before).or_insert(facts);
        }
    }
    found
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

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn seen(backups: &[EtcdBackup]) -> BTreeMap<Minor, SnapshotFacts> {
        let cluster: EtcdCluster = serde_json::from_value(json!({
            "metadata": { "name": "db", "uid": "uid-1", "generation": 4 },
            "spec": { "backup": { "store": { "address": "s3://bucket" } } } }))
        .unwrap();
        let facts = backups.iter().filter_map(SnapshotFacts::of).map(|facts| (facts.name.clone(), facts)).collect();
        of_cluster(&cluster, facts, millis(NOW.parse().unwrap()))
    }

    fn saved(backups: &[EtcdBackup]) -> Option<Saved> {
        seen(backups).get(&Minor(7)).map(|facts| facts.saved)
    }

    #[test]
    fn its_phase_says_what_has_come_of_it() {
        for (phase, found) in [
            (json!("Complete"), Saved::Taken),
            (json!("Failed"), Saved::Failed),
            (json!("Running"), Saved::UnderWay),
            (json!("Pending"), Saved::UnderWay),
            (json!("Unheard"), Saved::UnderWay),
            (Value::Null, Saved::UnderWay),
        ] {
            let backup = backup("db-to-3-7-4", |object| object["status"]["phase"] = phase.clone());
            assert_eq!(saved(&[backup]), Some(found), "{phase}");
        }
        let going = backup("db-to-3-7-4", |object| object["metadata"]["deletionTimestamp"] = NOW.into());
        assert_eq!(saved(&[going]), Some(Saved::UnderWay), "its name is not free yet");
    }

    #[test]
    fn only_that_of_this_object_and_this_store_counts() {
        let told = seen(&[backup("db-to-3-7-4", |_| ())]);
        assert_eq!(told.get(&Minor(7)).map(|facts| facts.words.as_str()), Some("no such bucket"));
        let of = |change: fn(&mut Value)| saved(&[backup("db-to-3-7-4", change)]);
        assert_eq!(of(|object| object["metadata"]["ownerReferences"][0]["uid"] = "uid-2".into()), None);
        assert_eq!(of(|object| object["metadata"]["annotations"] = json!({})), None, "of a user's own");
        assert_eq!(of(|object| object["spec"]["store"]["address"] = "s3://other".into()), None);
    }

    #[test]
    fn one_of_an_earlier_spec_counts_while_it_is_taken_and_shortly_after() {
        let earlier = |phase: &str, ended: &str| {
            backup("db-to-3-7-3", |object| {
                object["status"]["phase"] = phase.into();
                object["status"]["endedAt"] = ended.into();
            })
        };
        assert_eq!(saved(&[earlier("Running", NOW)]), Some(Saved::UnderWay));
        assert_eq!(saved(&[earlier("Complete", "2026-01-01T00:51:00Z")]), Some(Saved::Taken));
        assert_eq!(saved(&[earlier("Complete", "2026-01-01T00:49:00Z")]), None, "of an earlier upgrade");
        assert_eq!(saved(&[earlier("Failed", NOW)]), None, "another spec is another try");
        let both = [earlier("Running", NOW), backup("db-to-3-7-4", |_| ())];
        assert_eq!(saved(&both), Some(Saved::Failed), "the one of this spec comes first");
    }
}
