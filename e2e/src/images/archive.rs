//! Writes an image as a docker-archive: one layer on nothing, the same bytes for the same content. Needs no Docker and
//! knows nothing of what is in it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::digest::{self, Sha256};

/// What a file in an image holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The content of a file of ours.
    File(PathBuf),
    /// This text.
    Text(&'static str),
    /// A symbolic link to this path.
    Link(&'static str),
    /// A folder.
    Folder,
}

/// A file in an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where, without the leading slash.
    pub path: String,
    /// Its permissions.
    pub mode: u32,
    /// What it holds.
    pub content: Content,
}

/// An image to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The full name with its tag.
    pub name: String,
    /// Its files. Folders that aren't listed are made by whoever unpacks it.
    pub entries: Vec<Entry>,
    /// The `config` of the image's configuration: user, entry point and the like.
    pub config: Value,
}

impl Image {
    /// A key of all that is in the image.
    pub fn key(&self) -> io::Result<String> {
        let Self { name, entries, config } = self;
        let mut digest = Sha256::new().field(name).field(config.to_string());
        for Entry { path, mode, content } in entries {
            digest = digest.field(path).field(mode.to_be_bytes());
            digest = match content {
                Content::File(file) => digest.field("file").field(digest::of_file(file)?),
                Content::Text(text) => digest.field("text").field(text),
                Content::Link(target) => digest.field("link").field(target),
                Content::Folder => digest.field("folder"),
            };
        }
        Ok(digest.key())
    }

    /// Writes the archive to `path`.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut layer = tempfile(path)?;
        let diff_id = self.write_layer(&mut layer)?;
        let config = json!({
            "architecture": architecture(), "os": "linux", "created": "1970-01-01T00:00:00Z",
            "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff_id}")] },
            "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "quorate-e2e images" }],
        });
        let manifest = json!([{ "Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"] }]);
        let partial = path.with_extension("partial");
        let mut archive = tar::Builder::new(BufWriter::new(File::create(&partial)?));
        append(&mut archive, "manifest.json", manifest.to_string().as_bytes())?;
        append(&mut archive, "config.json", config.to_string().as_bytes())?;
        let size = layer.stream_position()?;
        layer.rewind()?;
        archive.append_data(&mut header(size, 0o644), "layer.tar", &layer)?;
        archive.into_inner()?.flush()?;
        // Only a whole archive gets the name that is looked for.
        fs::rename(partial, path)
    }

    /// Writes the layer and returns its digest.
    fn write_layer(&self, to: &mut File) -> io::Result<String> {
        let mut layer = tar::Builder::new(Digesting { to: BufWriter::new(to), digest: Sha256::new() });
        for Entry { path, mode, content } in &self.entries {
            match content {
                Content::File(file) => {
                    let file = File::open(file)?;
                    layer.append_data(&mut header(file.metadata()?.len(), *mode), path, file)?;
                }
                Content::Text(text) => {
                    layer.append_data(&mut header(text.len() as u64, *mode), path, text.as_bytes())?;
                }
                Content::Link(target) => {
                    let mut header = header(0, *mode);
                    header.set_entry_type(tar::EntryType::Symlink);
                    layer.append_link(&mut header, path, target)?;
                }
                Content::Folder => {
                    let mut header = header(0, *mode);
                    header.set_entry_type(tar::EntryType::Directory);
                    layer.append_data(&mut header, path, io::empty())?;
                }
            }
        }
        let mut digesting = layer.into_inner()?;
        digesting.flush()?;
        Ok(digesting.digest.hex())
    }
}

/// The architecture by the name that images use.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A file beside `path` that nobody else sees and that goes when it is closed.
fn tempfile(path: &Path) -> io::Result<File> {
    let name = path.with_extension("layer");
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&name)?;
    fs::remove_file(name)?;
    Ok(file)
}

fn append(archive: &mut tar::Builder<BufWriter<File>>, name: &str, bytes: &[u8]) -> io::Result<()> {
    archive.append_data(&mut header(bytes.len() as u64, 0o644), name, bytes)
}

/// A header that says nothing of this machine: no owner but root, no time.
fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Writes through and computes the digest of what went by.
struct Digesting<W> {
    to: W,
    digest: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.digest.bytes(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;

    use super::*;

    fn image(program: &Path) -> Image {
        let entry = |path: &str, mode, content| Entry { path: path.into(), mode, content };
        Image {
            name: "example.org/program:dev".into(),
            entries: vec![
                entry("tmp", 0o1777, Content::Folder),
                entry("program", 0o755, Content::File(program.into())),
                entry("etc/passwd", 0o644, Content::Text("root:x:0:0::/:/sbin/nologin\n")),
                entry("bin/sh", 0o777, Content::Link("/program")),
            ],
            config: json!({ "Cmd": ["/program"] }),
        }
    }

    fn files(archive: impl Read) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let read = |entry: io::Result<tar::Entry<'_, _>>| {
            let mut entry = entry.unwrap();
            let mut bytes = vec![];
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), (entry.header().mode().unwrap(), bytes))
        };
        archive.entries().unwrap().map(read).collect()
    }

    #[test]
    fn the_archive_has_a_manifest_a_config_and_one_layer_that_fit_together() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, "machine code").unwrap();
        let path = folder.path().join("image.tar");
        image(&program).write(&path).unwrap();

        let outer = files(File::open(&path).unwrap());
        let manifest: Value = serde_json::from_slice(&outer["manifest.json"].1).unwrap();
        assert_eq!(manifest[0]["RepoTags"], json!(["example.org/program:dev"]));
        let config: Value = serde_json::from_slice(&outer[manifest[0]["Config"].as_str().unwrap()].1).unwrap();
        let layer = &outer[manifest[0]["Layers"][0].as_str().unwrap()].1;
        let mut digest = Sha256::new();
        digest.bytes(layer);
        assert_eq!(config["rootfs"]["diff_ids"], json!([format!("sha256:{}", digest.hex())]));
        assert_eq!(config["config"]["Cmd"], json!(["/program"]));

        let inner = files(layer.as_slice());
        assert_eq!(inner["program"], (0o755, b"machine code".to_vec()));
        assert_eq!(inner["tmp"].0, 0o1777);
        assert_eq!(inner.keys().collect::<Vec<_>>(), ["bin/sh", "etc/passwd", "program", "tmp"]);
    }

    #[test]
    fn the_same_content_gives_the_same_bytes_and_key() {
        let folder = tempfile::tempdir().unwrap();
        let (program, one, two) =
            (folder.path().join("program"), folder.path().join("1.tar"), folder.path().join("2.tar"));
        fs::write(&program, "machine code").unwrap();
        image(&program).write(&one).unwrap();
        let key = image(&program).key().unwrap();
        fs::write(&program, "machine code").unwrap();
        image(&program).write(&two).unwrap();
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
        assert_eq!(key, image(&program).key().unwrap());
        fs::write(&program, "other code").unwrap();
        assert_ne!(key, image(&program).key().unwrap());
    }

    #[test]
    fn the_key_depends_on_mode_name_and_config() {
        let program = tempfile::NamedTempFile::new().unwrap();
        let key = image(program.path()).key().unwrap();
        let mut changed = image(program.path());
        changed.entries[1].mode = 0o700;
        assert_ne!(key, changed.key().unwrap());
        let mut changed = image(program.path());
        changed.config = json!({});
        assert_ne!(key, changed.key().unwrap());
        assert_ne!(key, Image { name: "other".into(), ..image(program.path()) }.key().unwrap());
    }
}
