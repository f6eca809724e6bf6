//! What etcd keeps in its database file: the names of its buckets, the keys of its history, and the messages in it. The same
//! in 3.5, 3.6 and 3.7 (`server/storage/mvcc/revision.go`, `server/storage/schema/bucket.go`).

use std::fmt;

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The bucket of the history: every revision of every key that was not compacted.
pub const KEY: &[u8] = b"key";
/// The bucket of the leases.
pub const LEASE: &[u8] = b"lease";
/// The bucket of the alarms.
pub const ALARM: &[u8] = b"alarm";
/// The bucket of what concerns the cluster as a whole.
pub const CLUSTER: &[u8] = b"cluster";
/// Its entry about a downgrade that was enabled.
pub const DOWNGRADE: &[u8] = b"downgrade";
/// The bucket of etcd's own notes.
pub const META: &[u8] = b"meta";
/// The bucket of what concerns all users and roles.
pub const AUTH: &[u8] = b"auth";
/// In [`AUTH`]: the number of changes to users and roles, in eight bytes (big endian).
pub const AUTH_REVISION: &[u8] = b"authRevision";
/// In [`META`]: up to where the history has been compacted, as the revision of a [`BucketKey`].
pub const FINISHED_COMPACT: &[u8] = b"finishedCompactRev";
/// In [`META`]: up to where a compaction has been ordered.
pub const SCHEDULED_COMPACT: &[u8] = b"scheduledCompactRev";

const LENGTH: usize = 17;
const TOMBSTONE: u8 = b't';

/// The key of an event in [`KEY`]: eight bytes of its revision, `_`, eight bytes of its number within that revision, and a
/// `t` if it is a deletion. All numbers are big endian, so that order by bytes is order by revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketKey {
    /// The revision.
    pub main: u64,
    /// The number of the event within it, from zero.
    pub sub: u64,
    /// Whether the event is a deletion.
    pub tombstone: bool,
}

/// What is no such key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{length} bytes that are not of the form of a revision")]
pub struct BucketKeyFault {
    length: usize,
}

impl BucketKey {
    /// Reads one.
    pub fn decode(bytes: &[u8]) -> Result<Self, BucketKeyFault> {
        let fault = || BucketKeyFault { length: bytes.len() };
        let (revision, mark) = bytes.split_at_checked(LENGTH).ok_or_else(fault)?;
        let tombstone = match mark {
            [] => false,
            [TOMBSTONE] => true,
            _ => return Err(fault()),
        };
        let (main, rest) = revision.split_first_chunk().ok_or_else(fault)?;
        let (separator, sub) = rest.split_first().ok_or_else(fault)?;
        let sub = sub.first_chunk().ok_or_else(fault)?;
        let key = Self { main: u64::from_be_bytes(*main), sub: u64::from_be_bytes(*sub), tombstone };
        // Both are signed in etcd.
        let positive = i64::try_from(key.main).is_ok() && i64::try_from(key.sub).is_ok();
        if *separator == b'_' && positive { Ok(key) } else { Err(fault()) }
    }

    /// As it is stored.
    pub fn encode(self) -> Encoded {
        let Self { main, sub, tombstone } = self;
        let mut bytes = [0; LENGTH + 1];
        bytes[..8].copy_from_slice(&main.to_be_bytes());
        bytes[8] = b'_';
        bytes[9..LENGTH].copy_from_slice(&sub.to_be_bytes());
        bytes[LENGTH] = TOMBSTONE;
        Encoded { bytes, tombstone }
    }
}

impl fmt::Display for BucketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)?;
        if self.tombstone { f.write_str(" (deletion)") } else { Ok(()) }
    }
}

/// The bytes of a [`BucketKey`], without an allocation.
#[derive(Debug, Clone, Copy)]
pub struct Encoded {
    bytes: [u8; LENGTH + 1],
    tombstone: bool,
}

impl Encoded {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length())]
    }

    /// How many.
    pub fn length(&self) -> u8 {
        if self.tombstone { 18 } else { 17 }
    }
}

/// `mvccpb.KeyValue`: the value of an entry of [`KEY`].
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct KeyValue {
    /// The key that was written or deleted.
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// The revision at which it was created.
    #[prost(int64, tag = "2")]
    pub create_revision: i64,
    /// The revision of this write.
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    /// How often it was written since its creation.
    #[prost(int64, tag = "4")]
    pub version: i64,
    /// What was written.
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    /// The lease it is bound to, or zero.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

/// The tag of `KeyValue.key`.
const KEY_TAG: u32 = 1;
/// The tag of `KeyValue.lease`.
const LEASE_TAG: u32 = 6;

/// The key in a serialised [`KeyValue`], without copying anything. `None` if it is no such message.
pub fn key_of(mut value: &[u8]) -> Option<&[u8]> {
    let mut key: &[u8] = &[];
    while !value.is_empty() {
        let (tag, wire) = decode_key(&mut value).ok()?;
        if tag == KEY_TAG && wire == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut value).ok()?).ok()?;
            (key, value) = value.split_at_checked(length)?;
        } else {
            skip_field(wire, tag, &mut value, DecodeContext::default()).ok()?;
        }
    }
    Some(key)
}

/// The lease in a serialised [`KeyValue`], without copying the rest of it. `None` if it is no such message.
pub fn lease_of(mut value: &[u8]) -> Option<i64> {
    let mut lease = 0;
    while !value.is_empty() {
        let (tag, wire) = decode_key(&mut value).ok()?;
        if tag == LEASE_TAG && wire == WireType::Varint {
            lease = decode_varint(&mut value).ok()?.cast_signed();
        } else {
            skip_field(wire, tag, &mut value, DecodeContext::default()).ok()?;
        }
    }
    Some(lease)
}

/// `leasepb.Lease`: the value of an entry of [`LEASE`].
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Lease {
    /// Its id, which is also its key, in eight bytes (big endian).
    #[prost(int64, tag = "1")]
    pub id: i64,
    /// For how long it is granted, in seconds.
    #[prost(int64, tag = "2")]
    pub ttl: i64,
    /// How much of that is left, in seconds, as of a checkpoint; zero if there was none.
    #[prost(int64, tag = "3")]
    pub remaining_ttl: i64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    proptest! {
        #[test]
        fn key_and_lease_are_found_in_any_message(
            key in proptest::collection::vec(any::<u8>(), 0..50),
            value in proptest::collection::vec(any::<u8>(), 0..300),
            numbers in any::<(i64, i64, i64, i64)>(),
        ) {
            let (create_revision, mod_revision, version, lease) = numbers;
            let message = KeyValue { key, create_revision, mod_revision, version, value, lease }.encode_to_vec();
            prop_assert_eq!(lease_of(&message), Some(lease));
            prop_assert_eq!(key_of(&message).map(<[u8]>::to_vec), KeyValue::decode(&message[..]).ok().map(|message| message.key));
        }

        #[test]
        fn any_bytes_have_a_key_and_a_lease_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let found = (key_of(&bytes).map(<[u8]>::to_vec), lease_of(&bytes));
            if let Ok(message) = KeyValue::decode(&bytes[..]) {
                prop_assert_eq!(found, (Some(message.key), Some(message.lease)));
            }
        }

        #[test]
        fn a_key_survives_and_sorts_as_it_does_in_bytes(
            one in (0..=i64::MAX.unsigned_abs(), 0..=i64::MAX.unsigned_abs(), any::<bool>()),
            other in (0..=i64::MAX.unsigned_abs(), 0..5_u64, any::<bool>()),
        ) {
            let [one, other] = [one, other].map(|(main, sub, tombstone)| BucketKey { main, sub, tombstone });
            prop_assert_eq!(BucketKey::decode(one.encode().as_bytes()), Ok(one));
            prop_assert_eq!(one.encode().as_bytes().cmp(other.encode().as_bytes()), one.cmp(&other));
        }

        #[test]
        fn no_bytes_are_taken_for_another_key(bytes in proptest::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(key) = BucketKey::decode(&bytes) {
                let encoded = key.encode();
                prop_assert_eq!(encoded.as_bytes(), &bytes[..]);
            }
        }
    }
}
