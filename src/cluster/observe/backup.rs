//! The backup that a new cluster is to begin with, as far as it shows before a restore is tried: the EtcdBackup or the store
//! that the spec names. Nobody looks at it once a seed is chosen.

use kube::ResourceExt;
use quorate_backup::format::Hash;
use quorate_crds::{BackupPhase, BackupStore, ConditionType, EtcdBackup, EtcdCluster, Reason, Restore};
use quorate_statemachine::{Memory, Origin, Readiness};

use super::Observer;
use crate::api::Error;
use crate::store_secrets::{self, Needed};

/// What is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backup {
    /// It can be tried.
    Ready(Box<Source>),
    /// It is being taken.
    Awaited(String),
    /// It can't be restored: why, and what helps.
    Unfit(Reason, String),
}

/// What a restore has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it is kept.
    pub store: BackupStore,
    /// Whose it is.
    pub lineage: String,
    /// Only of this cluster id.
    pub cluster: Option<String>,
    /// Only of this generation.
    pub generation: Option<String>,
    /// Up to a revision or a time, as the agent takes it; else the newest.
    pub to: Option<String>,
    /// The hash that its manifest had when it was taken, if that is known here.
    pub manifest: Option<Hash>,
}

impl Observer {
    /// The backup that this cluster is to begin with. `None` if it begins with nothing, or has begun.
    pub(super) async fn backup(&self, cluster: &EtcdCluster, memory: &Memory) -> Result<Option<Backup>, Error> {
        let Some(bootstrap) = cluster.spec.bootstrap.as_ref().filter(|_| !memory.may_have_begun()) else {
            return Ok(None);
        };
        let namespace = cluster.namespace().unwrap_or_default();
        let found = match &bootstrap.restore.backup {
            Some(named) => of_backup(&named.name, self.kube.get::<EtcdBackup>(&namespace, &named.name).await?.as_ref()),
            None => of_store(&bootstrap.restore),
        };
        let Backup::Ready(source) = &found else { return Ok(Some(found)) };
        if let Some(Needed { name, holds }) = store_secrets::missing(&self.kube, &namespace, &source.store).await? {
            let words = format!("There is no Secret {name}, which has the {holds} of the backup's store.");
            return Ok(Some(Backup::Unfit(Reason::SecretMissing, words)));
        }
        Ok(Some(found))
    }
}

/// The same in the state machine's words.
pub(super) fn origin(backup: Option<&Backup>) -> Origin {
    match backup {
        None => Origin::Nothing,
        Some(Backup::Ready(_)) => Origin::Backup(Readiness::Ready),
        Some(Backup::Awaited(_)) => Origin::Backup(Readiness::Awaited),
        Some(Backup::Unfit(..)) => Origin::Backup(Readiness::Unfit),
    }
}

fn of_backup(name: &str, found: Option<&EtcdBackup>) -> Backup {
    let Some(backup) = found else {
        let words = format!("There is no EtcdBackup {name} in this namespace, which spec.bootstrap.restore names.");
        return Backup::Unfit(Reason::BackupMissing, words);
    };
    let status = backup.status.clone().unwrap_or_default();
    match status.phase {
        Some(BackupPhase::Complete) => match source_of(backup) {
            Some(source) => Backup::Ready(Box::new(source)),
            None => Backup::Unfit(
                Reason::BackupMissing,
                format!(
                    "The status of EtcdBackup {name} does not say where it is, or has a hash that is none. Give its store and \
                     lineage instead."
                ),
            ),
        },
        Some(BackupPhase::Failed) => {
            let ready = ConditionType::Ready.among(&status.conditions);
            let why = ready.map(|ready| ready.message.as_str()).unwrap_or_default();
            Backup::Unfit(Reason::BackupFailed, format!("EtcdBackup {name} has failed: {why}"))
        }
        Some(BackupPhase::Deleting) => {
            Backup::Unfit(Reason::BackupMissing, format!("EtcdBackup {name} is being deleted, and with it the backup."))
        }
        Some(BackupPhase::Pending | BackupPhase::Running) | None => {
            Backup::Awaited(format!("EtcdBackup {name} is not complete yet: it is waited for."))
        }
    }
}

/// Exactly what this backup took: its manifest lies in `<lineage>/<cluster>/<generation>/full`.
fn source_of(backup: &EtcdBackup) -> Option<Source> {
    let status = backup.status.as_ref()?;
    let mut parts = status.manifest.as_deref()?.split('/').map(str::to_owned);
    let (lineage, cluster, generation) = (parts.next()?, parts.next()?, parts.next()?);
    let to = Some(status.revision?.to_string());
    let store = backup.spec.store.clone();
    let manifest = status.hash.as_deref().map(str::parse).transpose().ok()?;
    Some(Source { store, lineage, cluster: Some(cluster), generation: Some(generation), to, manifest })
}

fn of_store(restore: &Restore) -> Backup {
    let Restore { backup: _, store, lineage, generation, revision, time } = restore;
    match (store, lineage) {
        (Some(store), Some(lineage)) => Backup::Ready(Box::new(Source {
            store: store.clone(),
            lineage: lineage.clone(),
            cluster: None,
            generation: generation.clone(),
            to: revision.map(|revision| revision.to_string()).or_else(|| time.clone()),
            manifest: None,
        })),
        // The API server lets no such spec in.
        (Some(_) | None, Some(_) | None) => Backup::Unfit(
            Reason::SpecInvalid,
            "spec.bootstrap.restore names neither an EtcdBackup nor a store with a lineage.".into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MANIFEST: &str = "uid-1/00000000000000ab/20261121T142536Z-3f9a0c1d22e84b57/full";

    fn taken(status: &Value) -> EtcdBackup {
        serde_json::from_value(json!({
            "apiVersion": "quorate.dev/v1alpha1",
            "kind": "EtcdBackup",
            "metadata": { "name": "b" },
            "spec": { "cluster": "db", "store": { "address": "s3://bucket/etcd", "credentials": { "name": "s3" },
                "encryption": { "secretName": "keys" } } },
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn a_complete_backup_is_restored_as_it_was_taken() {
        let hash = Hash::of(b"the manifest").to_string();
        let status = json!({ "phase": "Complete", "manifest": MANIFEST, "revision": 41, "hash": hash });
        let Backup::Ready(source) = of_backup("b", Some(&taken(&status))) else { panic!("it is complete") };
        assert_eq!((source.lineage.as_str(), source.to.as_deref()), ("uid-1", Some("41")));
        assert_eq!(source.cluster.as_deref(), Some("00000000000000ab"));
        assert_eq!(source.generation.as_deref(), Some("20261121T142536Z-3f9a0c1d22e84b57"));
        assert_eq!(source.store.credentials.unwrap().name, "s3");
        assert_eq!(source.store.encryption.unwrap().secret_name, "keys");
        assert_eq!(source.manifest, Some(Hash::of(b"the manifest")), "and nothing that was put in its place");
    }

    #[test]
    fn what_is_not_complete_is_waited_for_and_what_has_failed_is_told() {
        for status in [json!({}), json!({ "phase": "Pending" }), json!({ "phase": "Running" })] {
            let found = of_backup("b", Some(&taken(&status)));
            assert!(matches!(found, Backup::Awaited(_)), "{found:?}");
            assert_eq!(origin(Some(&found)), Origin::Backup(Readiness::Awaited));
        }
        let condition = json!({ "type": "Ready", "status": "False", "reason": "StoreRefused", "message": "No bucket.",
            "lastTransitionTime": "2026-11-21T14:25:36Z" });
        let failed = of_backup("b", Some(&taken(&json!({ "phase": "Failed", "conditions": [condition] }))));
        let Backup::Unfit(Reason::BackupFailed, words) = &failed else { panic!("{failed:?}") };
        assert!(words.contains("No bucket."), "{words}");
        let going = taken(&json!({ "phase": "Deleting", "manifest": MANIFEST, "revision": 41 }));
        for missing in [None, Some(&going)] {
            assert!(matches!(of_backup("b", missing), Backup::Unfit(Reason::BackupMissing, _)));
        }
        for (manifest, hash) in [("x", Value::Null), (MANIFEST, json!("b3"))] {
            let status = json!({ "phase": "Complete", "manifest": manifest, "revision": 1, "hash": hash });
            let odd = of_backup("b", Some(&taken(&status)));
            assert_eq!(origin(Some(&odd)), Origin::Backup(Readiness::Unfit));
        }
    }

    #[test]
    fn a_store_is_asked_for_what_the_spec_says() {
        let restore = |more: Value| {
            let mut all = json!({ "store": { "address": "s3://bucket" }, "lineage": "blue" });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of_store(&serde_json::from_value(all).unwrap())
        };
        for (more, to) in [
            (json!({}), None),
            (json!({ "revision": 5 }), Some("5")),
            (json!({ "time": "2026-11-21T14:25:36Z" }), Some("2026-11-21T14:25:36Z")),
        ] {
            let Backup::Ready(source) = restore(more) else { panic!("it is described") };
            assert_eq!((source.lineage.as_str(), source.to.as_deref()), ("blue", to));
        }
        assert!(matches!(of_store(&Restore::default()), Backup::Unfit(Reason::SpecInvalid, _)));
        assert_eq!(origin(None), Origin::Nothing);
    }
}
