//! The spec in the state machine's words. Only translation; the schema has validated it.

use std::collections::BTreeMap;

use quorate_crds::{BeforeUpgrade, EtcdCluster, EtcdClusterSpec, Image, OnDelete, OnScaleDown};
use quorate_statemachine::{Life, Minor, Origin, Release, Retention, STOPS, Storage, Version, Wish};

use crate::cluster::render;

/// What the user wants, of a cluster that is to begin like this.
pub fn of(cluster: &EtcdCluster, origin: Origin) -> Wish {
    let spec = &cluster.spec;
    let release = release(spec);
    Wish {
        life: match (cluster.metadata.deletion_timestamp.is_some(), spec.paused, &release) {
            (true, true | false, _) => Life::Deleting,
            // The API server lets no version in that is none; nobody would know what to do for it.
            (false, true, _) | (false, false, None) => Life::Paused,
            (false, false, Some(_)) => Life::Wanted,
        },
        replicas: u8::try_from(spec.replicas).unwrap_or(0),
        template: render::hash(spec),
        resources: render::resources_hash(spec),
        release: release.unwrap_or_else(|| at(spec, Version::default())),
        stops: stops(spec),
        storage: storage(&spec.storage),
        // The API server lets no quantity in that is none; a learner is given the usual time then.
        quota: spec.etcd.quota_bytes(&spec.storage).unwrap_or_default(),
        origin,
        snapshot_first: spec.backup.as_ref().is_some_and(|backup| match backup.before_upgrade {
            BeforeUpgrade::Require => true,
            BeforeUpgrade::Skip => false,
        }),
    }
}

/// What the members are to run in the end.
pub fn release(spec: &EtcdClusterSpec) -> Option<Release> {
    let version = Version::parse(&spec.version)?;
    Some(Release { version, image: quorate_statemachine::Image::new(&spec.image_reference()) })
}

/// Where the way there leads through other minors, it is known which images hold them, unless the spec names one by its
/// tag.
fn stops(spec: &EtcdClusterSpec) -> BTreeMap<Minor, Release> {
    let Image { repository: _, tag, pull_policy: _, pull_secrets: _ } = &spec.image;
    match tag {
        Some(_) => BTreeMap::new(),
        None => STOPS.into_iter().map(|version| (version.minor, at(spec, version))).collect(),
    }
}

/// The release of this version in the spec's repository.
fn at(spec: &EtcdClusterSpec, version: Version) -> Release {
    let reference = format!("{}:v{version}", spec.image.repository);
    Release { version, image: quorate_statemachine::Image::new(&reference) }
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
    use quorate_crds::rules::{DOWN_FROM, OLDEST};
    use quorate_statemachine::{FLOORS, Floor};

    use super::*;

    fn wish(change: impl Fn(&mut EtcdCluster)) -> Wish {
        let mut cluster = EtcdCluster::new("db", EtcdClusterSpec::default());
        change(&mut cluster);
        of(&cluster, Origin::Nothing)
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
    fn versions_on_the_way_are_of_the_same_repository() {
        let wished = wish(|c| {
            c.spec.version = "3.7.1".into();
            c.spec.image.repository = "mirror.example.com/etcd".into();
        });
        assert_eq!(wished.release.version, Version::new(7, 1));
        assert_eq!(wished.release.image.as_str(), "mirror.example.com/etcd:v3.7.1");
        let stops: Vec<_> = wished.stops.values().map(|stop| stop.image.as_str()).collect();
        let tried =
            ["mirror.example.com/etcd:v3.5.35", "mirror.example.com/etcd:v3.6.16", "mirror.example.com/etcd:v3.7.3"];
        assert_eq!(stops, tried);
    }

    #[test]
    fn an_image_by_its_tag_is_the_only_one_that_is_known() {
        let wished = wish(|c| c.spec.image.tag = Some("own".into()));
        assert_eq!(wished.release.image.as_str(), "quay.io/coreos/etcd:own");
        assert_eq!(wished.release.version, Version::new(6, 16));
        assert!(wished.stops.is_empty());
    }

    /// The rules of the API server and the plan tell the same patches, each in a crate that does not know the other.
    #[test]
    fn what_may_be_run_may_be_left_upwards_and_the_rule_knows_from_where_downwards() {
        let floors = |wanted: fn(&Floor) -> bool| {
            let found = FLOORS.into_iter().filter(wanted);
            found.map(|Floor { from, .. }| (from.minor.to_string(), from.patch.into())).collect::<Vec<(String, u32)>>()
        };
        let told =
            |rules: &[(&str, u32)]| rules.iter().map(|(line, patch)| ((*line).to_owned(), *patch)).collect::<Vec<_>>();
        assert_eq!(floors(|floor| floor.to > floor.from.minor), told(&OLDEST));
        assert_eq!(floors(|floor| floor.to < floor.from.minor), told(&[DOWN_FROM]));
    }

    #[test]
    fn for_a_version_that_is_none_nothing_is_done() {
        assert_eq!(wish(|c| c.spec.version = "newest".into()).life, Life::Paused);
    }

    #[test]
    fn a_snapshot_comes_first_where_there_is_a_store_unless_it_is_skipped() {
        let with = |before_upgrade| {
            let store = quorate_crds::BackupStore::default();
            let backup = quorate_crds::ContinuousBackup { before_upgrade, ..quorate_crds::ContinuousBackup::to(store) };
            wish(|cluster| cluster.spec.backup = Some(backup.clone())).snapshot_first
        };
        assert!(!wish(|_| ()).snapshot_first);
        assert!(with(BeforeUpgrade::Require));
        assert!(!with(BeforeUpgrade::Skip));
    }

    #[test]
    fn the_quota_is_the_one_in_force() {
        assert_eq!(wish(|_| ()).quota, 2 << 30);
        assert_eq!(wish(|c| c.spec.etcd.quota = Some(quorate_crds::Quantity::new("40Gi"))).quota, 40 << 30);
    }

    #[test]
    fn storage_is_kept_as_the_retention_says() {
        let default = Storage::Claims { on_delete: Retention::Retain, on_scale_down: Retention::Delete };
        assert_eq!(wish(|_| ()).storage, default);
        assert_eq!(wish(|c| c.spec.storage.ephemeral = true).storage, Storage::Ephemeral);
    }
}
