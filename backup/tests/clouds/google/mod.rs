//! Google Cloud Storage, as a double.

pub mod double;
mod objects;
pub mod tokens;
pub mod trouble;
