//! Google Cloud Storage: as a double, and as Google's own where somebody names a bucket.

mod bucket;
mod places;

pub use bucket::Bucket;

pub use crate::clouds::google::double::{Double, KEY_FILE};
pub use crate::clouds::google::trouble::Trouble;
