//! SHA-256 as lower-case hexadecimal, the digest that image formats ask for and that names what we cache. Not for
//! secrets.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};

/// How much of a file is read at once.
const CHUNK: usize = 1 << 20;

/// A digest in the making.
#[derive(Clone)]
pub struct Sha256(Context);

impl Sha256 {
    /// The digest of nothing.
    pub fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds a field of a key: its length goes first, so that no two lists of fields look the same.
    #[must_use]
    pub fn field(mut self, field: impl AsRef<[u8]>) -> Self {
        let field = field.as_ref();
        self.bytes(&(field.len() as u64).to_be_bytes());
        self.bytes(field);
        self
    }

    /// The digest in hexadecimal.
    pub fn hex(self) -> String {
        self.0.finish().as_ref().iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string can't fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    /// The first 16 digits: enough to tell apart all that one machine ever caches.
    pub fn key(self) -> String {
        self.hex().split_at(16).0.to_owned()
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

/// The digest of a file's content.
pub fn of_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(digest.hex()),
            read => digest.bytes(&chunk[..read]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_sha_256() {
        let mut digest = Sha256::new();
        digest.bytes(b"abc");
        assert_eq!(digest.hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn fields_do_not_run_into_each_other() {
        assert_ne!(Sha256::new().field("ab").field("c").key(), Sha256::new().field("a").field("bc").key());
        assert_eq!(Sha256::new().field("ab").key().len(), 16);
    }

    #[test]
    fn a_file_has_the_digest_of_its_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        assert!(of_file(file.path()).unwrap().starts_with("ba7816bf"));
    }
}
