//! Google Cloud Storage, as a double.

pub mod double;
pub mod metadata;
mod objects;
pub mod tokens;
pub mod trouble;
