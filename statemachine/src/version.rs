//! Versions of etcd, and what is known of the ways between them, as data with sources. Nothing here looks at a cluster.

use std::{fmt, sync::Arc};

/// A minor version of etcd 3: `Minor(6)` is 3.6. Members of two neighbouring minors make one cluster, others do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minor(pub u16);

impl Minor {
    /// The minor after this one.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The minor before this one.
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Reads `3.6`, as etcd tells its cluster version, or a whole version.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("3.")?;
        number(rest.split_once('.').map_or(rest, |(minor, _)| minor)).map(Self)
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "3.{}", self.0)
    }
}

/// A version of etcd 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The minor.
    pub minor: Minor,
    /// The patch.
    pub patch: u16,
}

impl Version {
    /// The version 3.`minor`.`patch`.
    pub const fn new(minor: u16, patch: u16) -> Self {
        Self { minor: Minor(minor), patch }
    }

    /// Reads `3.6.16`.
    pub fn parse(text: &str) -> Option<Self> {
        let (minor, patch) = text.strip_prefix("3.")?.split_once('.')?;
        Some(Self { minor: Minor(number(minor)?), patch: number(patch)? })
    }
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.minor, self.patch)
    }
}

/// The reference of a container image. Opaque.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Image(Arc<str>);

impl Image {
    /// Takes a reference as Kubernetes takes it.
    pub fn new(reference: &str) -> Self {
        Self(reference.into())
    }

    /// The reference as Kubernetes takes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a member is told to run: an image, and the version that is in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// The version.
    pub version: Version,
    /// The image.
    pub image: Image,
}

/// The least patch from which a minor may be left, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// Leaving this one or a later patch of its minor.
    pub from: Version,
    /// For this minor.
    pub to: Minor,
    /// What goes wrong below it.
    pub why: &'static str,
    /// Where that is written.
    pub source: &'static str,
}

/// From which patches the next minor may be gone to.
pub const FLOORS: [Floor; 3] = [
    Floor {
        from: Version::new(5, 32),
        to: Minor(6),
        why: "earlier ones let members that were removed, and learners that were promoted, come back with 3.6 (#19557, \
              #20967)",
        source: "etcd.io/docs/v3.6/upgrades/upgrade_3_6",
    },
    Floor {
        from: Version::new(6, 11),
        to: Minor(7),
        why: "earlier ones refuse a new member while another is down, so that none can be replaced on the way (#21667)",
        source: "etcd.io/docs/v3.7/upgrades/upgrade_3_7",
    },
    Floor {
        from: Version::new(7, 2),
        to: Minor(6),
        why: "earlier ones misread their log on the way down (#22201)",
        source: "github.com/etcd-io/etcd/pull/22201",
    },
];

/// The floor of this step, if there is one.
pub fn floor(from: Minor, to: Minor) -> Option<&'static Floor> {
    FLOORS.iter().find(|floor| floor.from.minor == from && floor.to == to)
}

/// The patch at which a minor is passed through, where the spec names only where the way ends: the latest with which the
/// way was tried.
pub const STOPS: [Version; 3] = [Version::new(5, 35), Version::new(6, 16), Version::new(7, 3)];

/// The first minor that can't read log entries in the form that etcd had before [`FIRST_WITH_NEW_LOG`]: it panics while it
/// replays them ("unmarshal should never fail"), also as a fresh learner. An idle cluster keeps them for ever: a raft
/// snapshot, behind which they go, is taken only each `--snapshot-count` entries.
pub const FIRST_WITHOUT_OLD_LOG: Minor = Minor(7);

/// The first minor that writes no log entries in the old form.
pub const FIRST_WITH_NEW_LOG: Minor = Minor(6);

/// The first minor whose cluster version can be lowered: before it, the call is there and does nothing of use (etcd
/// 3.6's announcement: "the first version to fully support downgrade").
pub const FIRST_WITH_DOWNGRADE: Minor = Minor(6);

/// How many learners a member of this minor admits at a time. 3.5 admits one and has no flag for it (exit 2); Quorate
/// starts later ones with two. In a mixed cluster the least counts: each member checks a change with its own limit when it
/// applies it, so that one beyond the limit of some would be a member for others only (`ValidateConfigurationChange` in
/// `server/etcdserver/api/membership/cluster.go`).
pub fn max_learners(minor: Minor) -> usize {
    if minor < Minor(6) { 1 } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for version in STOPS {
            assert_eq!(Version::parse(&version.to_string()), Some(version));
            assert_eq!(Minor::parse(&version.minor.to_string()), Some(version.minor));
            assert_eq!(Minor::parse(&version.to_string()), Some(version.minor));
        }
    }

    #[test]
    fn what_is_no_version_is_none() {
        for text in ["", "3", "3.6", "3.6.", "3..1", "v3.6.1", "4.0.0", "3.+6.1", "3.6.-1", "3.6.1-rc.0", "3.99999.1"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert_eq!(Minor::parse("not-decided"), None);
    }

    #[test]
    fn each_floor_is_of_one_step_and_each_stop_above_it() {
        for found in FLOORS {
            assert_eq!(found.from.minor.0.abs_diff(found.to.0), 1);
            assert_eq!(floor(found.from.minor, found.to), Some(&found));
            assert!(!found.why.is_empty() && !found.source.is_empty());
            assert!(STOPS.iter().any(|stop| stop.minor == found.from.minor && *stop >= found.from));
        }
    }
}
