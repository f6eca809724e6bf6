//! S3 as versitygw serves it from a folder.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::place::Place;
use super::volume::files;
use super::{Flaw, Process, Server, program};
use crate::ports::free_address;

const BUCKET: &str = "backups";
const REGION: &str = "local";
const ACCESS: &str = "quorate";
const SECRET: &str = "not-a-secret";

/// One that takes everything, and one of the same folder that writes nothing.
pub struct VersityGw {
    folder: TempDir,
    address: SocketAddr,
    reading: SocketAddr,
    _processes: [Process; 2],
}

impl VersityGw {
    pub fn start() -> Option<Self> {
        let program = program("versitygw", "versitygw", "QUORATE_VERSITYGW")?;
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(BUCKET)).unwrap();
        let [address, reading] = [(); 2].map(|()| free_address());
        let processes = [(address, None), (reading, Some("--readonly"))].map(|(address, more)| {
            let mut command = Command::new(&program);
            command.args(["--access", ACCESS, "--secret", SECRET, "--region", REGION, "--keep-alive", "--quiet"]);
            command.args(more).args(["--port", &address.to_string(), "posix"]).arg(folder.path());
            Process::start(&mut command, address)
        });
        Some(Self { folder, address, reading, _processes: processes })
    }
}

fn place(bucket: &str, prefix: &str, server: SocketAddr, access: &str, secret: &str) -> Place {
    Place::at(format!("s3://{bucket}/{prefix}"))
        .with_option("endpoint", &format!("http://{server}"))
        .with_option("region", REGION)
        .with_credentials(&[("access-key-id", access), ("secret-access-key", secret)])
}

impl Server for VersityGw {
    fn place(&self, prefix: &str) -> Place {
        place(BUCKET, prefix, self.address, ACCESS, SECRET)
    }

    fn flawed(&self, prefix: &str, flaw: Flaw) -> Option<Place> {
        Some(match flaw {
            Flaw::WrongKey => place(BUCKET, prefix, self.address, ACCESS, "another"),
            Flaw::WrongAccount => place(BUCKET, prefix, self.address, "nobody", SECRET),
            Flaw::NoBucket => place("missing", prefix, self.address, ACCESS, SECRET),
            Flaw::ReadOnly => place(BUCKET, prefix, self.reading, ACCESS, SECRET),
        })
    }

    fn parts_left(&self) -> Option<usize> {
        // Where versitygw keeps them until the upload is completed.
        let folder = self.folder.path().join(BUCKET).join(Path::new(".sgwtmp/multipart"));
        Some(if folder.exists() { files(&folder, "") } else { 0 })
    }
}
