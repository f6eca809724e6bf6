//! Google Cloud Storage: as a double, and as Google's own where somebody names a bucket.

mod bucket;
mod double;
mod objects;
mod tokens;
mod trouble;

pub use bucket::Bucket;
pub use double::{Double, KEY_FILE};
pub use trouble::Trouble;
