//! What a backup is made of: generations, manifests and data objects, as docs/backup-format.md describes them. It reads and
//! writes these, and decides neither when a backup is taken nor what becomes of it.

mod chain;
mod choice;
mod commit;
mod data;
mod frames;
mod hash;
mod manifest;
mod names;
mod reading;
mod record;
mod seal;
#[cfg(test)]
mod sealed_tests;
#[cfg(test)]
pub(crate) mod tests;
mod unseal;

pub use chain::{Chain, ChainError, Extent, Link, generations, has_deltas, last_delta, read_last_delta};
pub use choice::{Choice, ChoiceError, Chosen, End, Seam, Span, Target, choose, in_doubt, recorded_before};
pub use commit::{COMMIT_WITHIN, CommitError, GARBAGE_AGE, commit};
pub use data::{DataError, DataObject, DataReader, DataWriter};
pub use frames::{FRAME, FrameFault, compress, decompress};
pub use hash::{EventHash, Hash, Hasher};
pub use manifest::{
    Data, Delta, ENCRYPTED_VERSION, Full, Header, LeaseGrant, MANIFEST_LIMIT, ManifestFault, Sample, VERSION,
};
pub use names::{Cluster, GenerationKey, GenerationName, Lineage, NameFault, Nonce, Revision};
pub use reading::{Damage, Reading};
pub use record::{MAX_RECORD, Record, RecordFault, RecordReader, split_record, write_record};
pub use seal::{Age, Seal, SealFault};
pub use unseal::{demand_identity, opened_by};
