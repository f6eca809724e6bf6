//! The names of the format: what they may look like, and the keys that they make.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::store::Key;

/// The longest lineage. A UID has 36 characters, the longest name of a Kubernetes object 253.
const LONGEST: usize = 253;

/// Why a text is no such name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no {kind}: {wanted}")]
pub struct NameFault {
    kind: &'static str,
    text: String,
    wanted: &'static str,
}

impl NameFault {
    pub(super) fn hash(text: &str) -> Self {
        Self { kind: "hash", text: text.chars().take(80).collect(), wanted: "it has 64 hexadecimal digits" }
    }
}

/// A revision of etcd's history: its main number. Later is larger, and none is left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Revision(u64);

impl Revision {
    /// That of an etcd in which nothing was written yet.
    pub const FIRST: Self = Self(1);

    /// A revision. etcd counts in 63 bits.
    pub fn new(revision: u64) -> Option<Self> {
        i64::try_from(revision).is_ok().then_some(Self(revision))
    }

    /// From etcd's own type.
    pub fn from_etcd(revision: i64) -> Option<Self> {
        u64::try_from(revision).ok().map(Self)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The number in etcd's own type.
    pub fn to_etcd(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// The one after it.
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1).min(i64::MAX.unsigned_abs()))
    }
}

impl TryFrom<u64> for Revision {
    type Error = NameFault;

    fn try_from(revision: u64) -> Result<Self, NameFault> {
        let fault = || NameFault { kind: "revision", text: revision.to_string(), wanted: "it has 63 bits" };
        Self::new(revision).ok_or_else(fault)
    }
}

impl From<Revision> for u64 {
    fn from(revision: Revision) -> Self {
        revision.0
    }
}

impl FromStr for Revision {
    type Err = NameFault;

    fn from_str(text: &str) -> Result<Self, NameFault> {
        let fault = || NameFault { kind: "revision", text: text.to_owned(), wanted: "write a number" };
        text.parse().ok().and_then(Self::new).ok_or_else(fault)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $wanted:literal, $fits:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// As text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = NameFault;

            fn from_str(text: &str) -> Result<Self, NameFault> {
                let fits: fn(&str) -> bool = $fits;
                if fits(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(NameFault { kind: $kind, text: text.chars().take(80).collect(), wanted: $wanted })
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameFault;

            fn try_from(text: String) -> Result<Self, NameFault> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_name!(
    /// Whose backups these are: the UID of the EtcdCluster, or any name outside of Kubernetes.
    Lineage,
    "lineage",
    "it has letters, digits, dots and dashes, and begins with a letter or digit",
    |text| text.len() <= LONGEST
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.chars().all(|char| char.is_ascii_alphanumeric() || ['.', '-', '_'].contains(&char))
);
text_name!(
    /// etcd's id of the cluster, as 16 hexadecimal digits. Two restores of one lineage may have the same.
    Cluster,
    "cluster id",
    "it has 16 hexadecimal digits",
    |text| lowercase_hex(text, 16)
);
text_name!(
    /// Marks what one writer wrote in one attempt, so that it can tell its own object from another writer's.
    Nonce,
    "nonce",
    "it has 32 hexadecimal digits",
    |text| lowercase_hex(text, 32)
);
text_name!(
    /// One unbroken history: a full snapshot and the deltas that follow it. When it began, and a random number.
    GenerationName,
    "generation",
    "it looks like 20060102T150405Z-0123456789abcdef",
    |text| text.split_once('-').is_some_and(|(time, random)| {
        lowercase_hex(random, 16)
            && time.len() == 16
            && time.bytes().enumerate().all(|(at, byte)| match at {
                8 => byte == b'T',
                15 => byte == b'Z',
                _ => byte.is_ascii_digit(),
            })
    })
);

fn lowercase_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

impl Cluster {
    /// Of etcd's number.
    pub fn of(id: u64) -> Self {
        Self(format!("{id:016x}"))
    }
}

impl Nonce {
    /// A new one.
    pub fn random() -> Self {
        Self(format!("{:032x}", fastrand::u128(..)))
    }
}

/// The form of the time in the name of a generation.
const NAME_TIME: &str = "%Y%m%dT%H%M%SZ";

impl GenerationName {
    /// A new one, for a generation that begins now.
    pub fn new(now: Timestamp) -> Self {
        Self(format!("{}-{:016x}", now.strftime(NAME_TIME), fastrand::u64(..)))
    }

    /// The second that it names: of two generations, the one with the later name began later. Long ago, if it names none.
    pub fn moment(&self) -> Timestamp {
        let named = self.0.split_once('-').and_then(|(time, _)| DateTime::strptime(NAME_TIME, time).ok());
        let moment = named.and_then(|time| time.to_zoned(TimeZone::UTC).ok());
        moment.map_or(Timestamp::UNIX_EPOCH, |zoned| zoned.timestamp())
    }
}

/// Where a generation is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationKey {
    /// Whose it is.
    pub lineage: Lineage,
    /// Of which cluster.
    pub cluster: Cluster,
    /// Its name.
    pub name: GenerationName,
}

impl GenerationKey {
    /// The one whose full snapshot has this manifest: `<lineage>/<cluster>/<generation>/full`.
    pub fn of_full(manifest: &str) -> Result<Self, NameFault> {
        let fault = || NameFault {
            kind: "manifest of a full snapshot",
            text: manifest.chars().take(400).collect(),
            wanted: "it looks like <lineage>/<cluster>/<generation>/full",
        };
        let parts: Vec<_> = manifest.split('/').collect();
        let [lineage, cluster, name, "full"] = parts.as_slice() else { return Err(fault()) };
        Ok(Self { lineage: lineage.parse()?, cluster: cluster.parse()?, name: name.parse()? })
    }

    /// The folder that holds all of it.
    pub fn folder(&self) -> Key {
        Key::new(self.lineage.as_str()).join(self.cluster.as_str()).join(self.name.as_str())
    }

    /// The manifest of its full snapshot.
    pub fn full(&self) -> Key {
        self.folder().join("full")
    }

    /// The folder of its deltas' manifests.
    pub fn deltas(&self) -> Key {
        self.folder().join("m")
    }

    /// The manifest of the delta that begins with this revision. With 20 digits, order by name is order by revision.
    pub fn delta(&self, from: Revision) -> Key {
        self.deltas().join(&format!("{:020}", from.get()))
    }

    /// The folder of its data objects.
    pub fn data_folder(&self) -> Key {
        self.folder().join("d")
    }

    /// A data object.
    pub fn data(&self, nonce: &Nonce) -> Key {
        self.data_folder().join(nonce.as_str())
    }
}

impl fmt::Display for GenerationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_they_look_like() {
        assert_eq!(Cluster::of(0xab).as_str(), "00000000000000ab");
        let name = GenerationName::new("2026-11-21T14:25:36Z".parse().unwrap());
        assert!(name.as_str().starts_with("20261121T142536Z-"), "{name}");
        assert_eq!(name.as_str().parse::<GenerationName>().unwrap(), name);
        assert_eq!(name.moment(), "2026-11-21T14:25:36Z".parse().unwrap());
        assert_eq!(Nonce::random().as_str().len(), 32);
        for wrong in ["", ".", "..", "a/b", "-a", "ä", "a b"] {
            assert!(wrong.parse::<Lineage>().is_err(), "{wrong}");
        }
        for wrong in ["20261121T142536Z", "20261121T142536Z-1", "20261121T142536z-0123456789abcdef", "é-é"] {
            assert!(wrong.parse::<GenerationName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_are_in_the_order_of_revisions() {
        let generation = GenerationKey {
            lineage: "blue".parse().unwrap(),
            cluster: Cluster::of(1),
            name: GenerationName::new(Timestamp::UNIX_EPOCH),
        };
        let full = generation.full();
        assert_eq!(GenerationKey::of_full(full.as_str()), Ok(generation.clone()));
        for wrong in ["", "blue", "/blue/0000000000000001/x/full", &full.as_str()[1..].replace("full", "m")] {
            assert!(GenerationKey::of_full(wrong).is_err(), "{wrong}");
        }
        let keys = [9, 10, 9_999_999_999].map(|revision| generation.delta(Revision::new(revision).unwrap()));
        assert!(keys.is_sorted());
        assert!(keys[0].as_str().ends_with("/m/00000000000000000009"));
    }

    #[test]
    fn a_revision_has_63_bits() {
        assert_eq!(Revision::new(u64::MAX), None);
        assert_eq!(Revision::from_etcd(-1), None);
        assert!("9223372036854775808".parse::<Revision>().is_err());
        let last: Revision = "9223372036854775807".parse().unwrap();
        assert_eq!(last.next(), last);
    }
}
