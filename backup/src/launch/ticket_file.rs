//! The ticket's file, which the kubelet keeps equal to the pod's annotation. It only reads the text.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::{Reason, Refusal};
use crate::ticket;

/// The file's text; nothing if there is no file or nothing in it (a pod without the annotation has an empty file).
pub fn read(path: &Path) -> Result<Option<String>, Refusal> {
    let bad = |problem: String| Refusal::new(Reason::BadTicket, format!("{}: {problem}", path.display()));
    let bytes = match read_bytes(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(format!("failed to read: {error}"))),
    };
    if bytes.len() > ticket::MAX_BYTES {
        return Err(bad(format!("longer than {} bytes", ticket::MAX_BYTES)));
    }
    let text = String::from_utf8(bytes).map_err(|_| bad("not UTF-8".into()))?;
    Ok((!text.trim().is_empty()).then_some(text))
}

/// The file's bytes, at most one more than a ticket may have.
fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let limit = u64::try_from(ticket::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn absent_empty_and_blank_files_are_no_ticket_and_others_a_text_or_bad() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ticket");
        assert_eq!(read(&path), Ok(None));
        for (bytes, expected) in [(&b""[..], None), (b" \n", None), (b"{}", Some("{}".to_owned()))] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path), Ok(expected));
        }
        for bytes in [vec![0xff], vec![b' '; ticket::MAX_BYTES + 1]] {
            fs::write(&path, bytes).unwrap();
            assert_eq!(read(&path).unwrap_err().reason, Reason::BadTicket);
        }
        assert_eq!(read(folder.path()).unwrap_err().reason, Reason::BadTicket);
    }
}
