//! Manifests: small JSON objects that say what belongs to a backup and by which hashes it is known. Reading one checks
//! everything that can be checked without its neighbours; nothing in it is trusted beyond that.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::frames::{FRAME, largest_frame};
use super::hash::Hash;
use super::names::{Cluster, GenerationKey, GenerationName, Lineage, Nonce, Revision};
use super::seal::Age;
use super::unseal::Layout;
use crate::keys::Fingerprint;

/// The version of a manifest whose data is not encrypted.
pub const VERSION: u32 = 1;
/// The version of one whose data is: a reader that knows nothing of encryption refuses it by this number.
pub const ENCRYPTED_VERSION: u32 = 2;
/// The largest manifest that is read, in bytes. That of a snapshot of 64 GiB has some 160 KiB; one of a delta with a
/// million lease grants 50 MiB would be cut into several.
pub const MANIFEST_LIMIT: u64 = 16 << 20;

/// Why some bytes are no manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestFault {
    /// It is not JSON of this shape. A field that is not known is refused too: a reader that ignores it may restore
    /// something else than was meant.
    #[error("it is no manifest of this format: {0}")]
    Shape(#[from] serde_json::Error),
    /// It is larger than any is.
    #[error("it has {0} bytes, and no more than {MANIFEST_LIMIT} are allowed")]
    TooLarge(u64),
    /// It is of a later version.
    #[error("it has version {0}, and this program knows the versions {VERSION} and {ENCRYPTED_VERSION} only")]
    Version(u32),
    /// It lies where another one belongs.
    #[error("it belongs to {0}")]
    OtherGeneration(GenerationKey),
    /// Its numbers contradict each other.
    #[error("it contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// What all manifests begin with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Header {
    /// The version of the format.
    pub format: u32,
    /// Whose backup it is.
    pub lineage: Lineage,
    /// Of which cluster.
    pub cluster: Cluster,
    /// Of which generation.
    pub generation: GenerationName,
    /// Who wrote it, in which attempt.
    pub writer: Nonce,
}

impl Header {
    /// For a manifest of this generation that refers to this data.
    pub fn new(generation: &GenerationKey, writer: Nonce, data: &Data) -> Self {
        let GenerationKey { lineage, cluster, name } = generation.clone();
        Self { format: data.version(), lineage, cluster, generation: name, writer }
    }

    fn generation(&self) -> GenerationKey {
        GenerationKey { lineage: self.lineage.clone(), cluster: self.cluster.clone(), name: self.generation.clone() }
    }

    fn check(&self, place: &GenerationKey, data: &Data) -> Result<(), ManifestFault> {
        match self.format {
            VERSION | ENCRYPTED_VERSION if self.format != data.version() => {
                return Err(ManifestFault::Contradiction("its version does not fit whether its data is encrypted"));
            }
            VERSION | ENCRYPTED_VERSION => {}
            later => return Err(ManifestFault::Version(later)),
        }
        if self.generation() == *place { Ok(()) } else { Err(ManifestFault::OtherGeneration(self.generation())) }
    }
}

/// A data object: zstd frames one after the other, each of [`FRAME`] bytes when decompressed but the last; perhaps
/// encrypted, as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Data {
    /// Its name in the generation's folder of data.
    pub name: Nonce,
    /// The hash of the object as it is stored.
    pub blake3: Hash,
    /// Its size when decompressed, in bytes.
    pub plain_bytes: u64,
    /// The size of each frame when compressed, in bytes.
    pub frames: Vec<u32>,
    /// How it is encrypted, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Age>,
}

impl Data {
    /// The object's size as it is stored, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.age.as_ref().map_or_else(|| self.compressed_bytes(), |age| age.bytes)
    }

    /// The size of all frames, in bytes.
    pub fn compressed_bytes(&self) -> u64 {
        self.frames.iter().map(|frame| u64::from(*frame)).sum()
    }

    /// To whom it is encrypted; nobody, if it is not.
    pub fn recipients(&self) -> &[Fingerprint] {
        self.age.as_ref().map_or(&[], |age| &age.recipients)
    }

    /// The version of a manifest that refers to it.
    fn version(&self) -> u32 {
        if self.age.is_some() { ENCRYPTED_VERSION } else { VERSION }
    }

    fn check(&self) -> Result<(), ManifestFault> {
        let frames = u64::try_from(self.frames.len()).unwrap_or(u64::MAX);
        if self.plain_bytes.div_ceil(FRAME as u64) != frames {
            return Err(ManifestFault::Contradiction("the number of frames does not fit the size"));
        }
        if self.frames.iter().any(|frame| *frame == 0 || *frame > largest_frame()) {
            return Err(ManifestFault::Contradiction("a frame has an impossible size"));
        }
        match &self.age {
            Some(age) if age.recipients.is_empty() => Err(ManifestFault::Contradiction("it is encrypted to nobody")),
            Some(_) if Layout::of(self).is_none() => {
                Err(ManifestFault::Contradiction("the encrypted data has an impossible size"))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// At a moment, the cluster had reached at least this revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sample {
    /// When, by the writer's clock.
    pub at: Timestamp,
    /// What it had reached then.
    pub revision: Revision,
}

/// A lease that was seen to be granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LeaseGrant {
    /// etcd's number for it, as its user or etcd chose it: any but zero, which stands for none.
    pub id: i64,
    /// For how long it was granted, in seconds.
    pub ttl: i64,
}

/// The manifest of a full snapshot: where a generation begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Full {
    /// Where it belongs.
    pub header: Header,
    /// The version of the etcd that it was taken from.
    pub etcd_version: String,
    /// The last revision in it.
    pub revision: Revision,
    /// Up to where that history had been compacted; zero if never.
    pub compact_revision: Revision,
    /// The hash of the records of the last revision: what a later watch must show for it, or it shows another history.
    pub last_events: Hash,
    /// The revision of users and roles, which are in no delta: when it changes, a new generation has to begin.
    pub auth_revision: u64,
    /// When the database was in this state: the moment before it was asked for.
    pub taken: Timestamp,
    /// The size of the database file, in bytes. What follows it in the data is etcd's own SHA-256 of it.
    pub database_bytes: u64,
    /// The database file, with etcd's hash at its end.
    pub data: Data,
}

/// The manifest of the events between two revisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Delta {
    /// Where it belongs.
    pub header: Header,
    /// Its first revision: one more than the last of what it follows.
    pub from: Revision,
    /// Its last revision, all events of which are in it.
    pub to: Revision,
    /// The hash of the manifest that it follows, as that is stored.
    pub previous: Hash,
    /// How many events are in it.
    pub events: u64,
    /// The hash of the records of its last revision.
    pub last_events: Hash,
    /// The leases that were granted since the manifest before.
    pub leases: Vec<LeaseGrant>,
    /// Moments between its first and its last revision, in order.
    pub samples: Vec<Sample>,
    /// The records, in order.
    pub data: Data,
}

impl Full {
    /// Reads one that was found at this place.
    pub fn read(bytes: &[u8], place: &GenerationKey) -> Result<Self, ManifestFault> {
        let full: Self = parse(bytes)?;
        full.header.check(place, &full.data)?;
        full.data.check()?;
        if full.compact_revision > full.revision {
            return Err(ManifestFault::Contradiction("it was compacted beyond its last revision"));
        }
        if full.database_bytes.checked_add(TRAILER) != Some(full.data.plain_bytes) {
            return Err(ManifestFault::Contradiction("the database's size does not fit the data's"));
        }
        Ok(full)
    }

    /// As it is stored.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }
}

/// The size of the SHA-256 that etcd sends after the database.
const TRAILER: u64 = 32;

impl Delta {
    /// Reads one that was found at this place, as the delta that begins with `from`.
    pub fn read(bytes: &[u8], place: &GenerationKey, from: Revision) -> Result<Self, ManifestFault> {
        let delta: Self = parse(bytes)?;
        delta.header.check(place, &delta.data)?;
        delta.data.check()?;
        let contradiction = |fault| Err(ManifestFault::Contradiction(fault));
        if delta.from != from {
            return contradiction("it begins with another revision than its name says");
        }
        if delta.to < delta.from || delta.events < delta.to.get() - delta.from.get() + 1 {
            return contradiction("its revisions and events don't fit");
        }
        let in_order = delta.samples.is_sorted_by(|one, next| one.at <= next.at && one.revision <= next.revision);
        let inside = |sample: &Sample| (delta.from..=delta.to).contains(&sample.revision);
        if !in_order || !delta.samples.iter().all(inside) {
            return contradiction("its moments are not in order");
        }
        let leases: BTreeSet<_> = delta.leases.iter().map(|lease| lease.id).collect();
        if leases.len() != delta.leases.len() || delta.leases.iter().any(|lease| lease.id == 0 || lease.ttl <= 0) {
            return contradiction("its leases are impossible");
        }
        Ok(delta)
    }

    /// As it is stored.
    pub fn write(&self) -> Vec<u8> {
        write(self)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ManifestFault> {
    /// Enough to tell a later version from damage.
    #[derive(Deserialize)]
    struct Versioned {
        header: HeaderVersion,
    }
    #[derive(Deserialize)]
    struct HeaderVersion {
        format: u32,
    }
    // Nobody would read what is about to be written.
    if bytes.len() as u64 > MANIFEST_LIMIT {
        return Err(ManifestFault::TooLarge(bytes.len() as u64));
    }
    match serde_json::from_slice(bytes) {
        Ok(manifest) => Ok(manifest),
        Err(error) => match serde_json::from_slice::<Versioned>(bytes) {
            Ok(Versioned { header: HeaderVersion { format } }) if !matches!(format, VERSION | ENCRYPTED_VERSION) => {
                Err(ManifestFault::Version(format))
            }
            _ => Err(error.into()),
        },
    }
}

fn write(manifest: &impl Serialize) -> Vec<u8> {
    // Names and numbers only, and no map with keys that aren't text: serde_json has no case in which this fails.
    let mut bytes = serde_json::to_vec(manifest).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
