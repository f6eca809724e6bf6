//! The spec in the state machine's words. Only translation; the schema has validated it.

use quorate_crds::{EtcdCluster, OnDelete, OnScaleDown};
use quorate_statemachine::{Life, Retention, Storage, TemplateHash, Wish};

use crate::cluster::render;

/// What the user wants.
pub fn of(cluster: &EtcdCluster, template: TemplateHash) -> Wish {
    let spec = &cluster.spec;
    Wish {
        life: match (cluster.metadata.deletion_timestamp.is_some(), spec.paused) {
            (true, true | false) => Life::Deleting,
            (false, true) => Life::Paused,
            (false, false) => Life::Wanted,
        },
        replicas: u8::try_from(spec.replicas).unwrap_or(0),
        template,
        max_learners: render::max_learners(&spec.version),
        storage: storage(&spec.storage),
    }
}

fn storage(storage: &quorate_crds::Storage) -> Storage {
    if storage.ephemeral {
        return Storage::Ephemeral;
    }
    let quorate_crds::Retention { on_delete, on_scale_down } = storage.retention();
    Storage::Claims {
        on_delete: match on_delete {
            OnDelete::Retain => Retention::Retain,
            OnDelete::Delete => Retention::Delete,
        },
        on_scale_down: match on_scale_down {
            OnScaleDown::Retain => Retention::Retain,
            OnScaleDown::Delete => Retention::Delete,
        },
    }
}

#[cfg(test)]
mod tests {
    use quorate_crds::EtcdClusterSpec;

    use super::*;

    fn wish(change: impl Fn(&mut EtcdCluster)) -> Wish {
        let mut cluster = EtcdCluster::new("db", EtcdClusterSpec::default());
        change(&mut cluster);
        of(&cluster, TemplateHash(7))
    }

    #[test]
    fn deletion_comes_before_pause() {
        assert_eq!(wish(|_| ()).life, Life::Wanted);
        assert_eq!(wish(|c| c.spec.paused = true).life, Life::Paused);
        let deleted = wish(|c| {
            c.spec.paused = true;
            c.metadata.deletion_timestamp =
                Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
        });
        assert_eq!(deleted.life, Life::Deleting);
    }

    #[test]
    fn the_version_decides_how_many_learners_there_may_be() {
        assert_eq!(wish(|c| c.spec.version = "3.5.35".into()).max_learners, 1);
        assert_eq!(wish(|c| c.spec.version = "3.6.16".into()).max_learners, 2);
        assert_eq!(wish(|c| c.spec.version = "3.7.3".into()).max_learners, 2);
    }

    #[test]
    fn storage_is_kept_as_the_retention_says() {
        let default = Storage::Claims { on_delete: Retention::Retain, on_scale_down: Retention::Delete };
        assert_eq!(wish(|_| ()).storage, default);
        assert_eq!(wish(|c| c.spec.storage.ephemeral = true).storage, Storage::Ephemeral);
    }
}
