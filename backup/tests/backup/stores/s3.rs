//! S3 as versitygw serves it from a folder.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::certificates::Authority;
use super::place::Place;
use super::volume::files;
use super::{Flaw, Process, Server, program};
use crate::clouds::s3::Owner;
use crate::ports::free_address;
use crate::programs::serves;

const BUCKET: &str = "backups";
/// A domain in which each address of this machine's is a host: a server that finds the bucket in the host's name takes `127.0.0.1` for
/// the bucket `127.0`. So nothing has to resolve names, which below `localhost` not every system does.
const DOMAIN: &str = "0.1";
const BUCKET_BY_HOST: &str = "127.0";
/// One that is not there, with the address that names it.
const MISSING_BY_HOST: (Ipv4Addr, &str) = (Ipv4Addr::new(127, 1, 0, 1), "127.1");
pub const REGION: &str = "local";
pub const ACCESS: &str = "quorate";
pub const SECRET: &str = "not-a-secret";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Where a request names the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addressing {
    Path,
    VirtualHosted,
}

/// One that takes everything, and one of the same folder that writes nothing.
pub struct VersityGw {
    folder: TempDir,
    address: SocketAddr,
    reading: SocketAddr,
    /// Whom to trust, if they speak TLS.
    authority: Option<String>,
    /// Where it keeps what was deleted of a bucket that has versions, if it can have such.
    versions: Option<TempDir>,
    addressing: Addressing,
    program: PathBuf,
    processes: Vec<Process>,
}

impl VersityGw {
    pub fn start() -> Option<Self> {
        Self::begin(None, None, Addressing::Path)
    }

    /// A bucket in which objects can be locked keeps all versions of them, as Amazon's do.
    pub fn with_versions() -> Option<Self> {
        Self::begin(None, Some(tempfile::tempdir().unwrap()), Addressing::Path)
    }

    /// They speak TLS, with a certificate that this authority has signed.
    pub fn over_tls(authority: &Authority) -> Option<Self> {
        Self::begin(Some(authority), None, Addressing::Path)
    }

    /// They find the bucket in the name of the host.
    pub fn with_virtual_hosts() -> Option<Self> {
        Self::begin(None, None, Addressing::VirtualHosted)
    }

    fn begin(authority: Option<&Authority>, versions: Option<TempDir>, addressing: Addressing) -> Option<Self> {
        let program = program("versitygw", "versitygw", "QUORATE_VERSITYGW")?;
        let folder = tempfile::tempdir().unwrap();
        let [address, reading] = [(); 2].map(|()| free_address());
        let processes = Vec::new();
        let mut server = Self { folder, address, reading, authority: None, versions, addressing, program, processes };
        fs::create_dir(server.buckets().join(server.bucket())).unwrap();
        server.restart(authority);
        Some(server)
    }

    /// Starts them anew; with a certificate that this authority has signed, which whoever is asked for a place trusts from now on.
    pub fn restart(&mut self, authority: Option<&Authority>) {
        self.processes.clear();
        let pair = authority.map(pair);
        for (address, more) in [(self.address, None), (self.reading, Some("--readonly"))] {
            let mut command = Command::new(&self.program);
            command.args(["--access", ACCESS, "--secret", SECRET, "--region", REGION, "--keep-alive", "--quiet"]);
            if let Some(pair) = &pair {
                command.arg("--cert").arg(pair.path().join(CERTIFICATE)).arg("--key").arg(pair.path().join(KEY));
            }
            let missing = SocketAddr::from((MISSING_BY_HOST.0, address.port()));
            if self.addressing == Addressing::VirtualHosted {
                command.args(["--virtual-domain", DOMAIN, "--port", &missing.to_string()]);
            }
            command.args(more).args(["--port", &address.to_string(), "posix"]);
            if let Some(versions) = &self.versions {
                command.arg("--versioning-dir").arg(versions.path());
            }
            let mut process = Process::start(command.arg(self.folder.path()), address);
            if self.addressing == Addressing::VirtualHosted {
                serves(&mut process.0, missing);
            }
            self.processes.push(process);
        }
        self.authority = authority.map(Authority::certificate);
    }

    /// A place of which no more is said than where it is.
    pub fn bare(&self, prefix: &str) -> Place {
        self.at(self.address, self.bucket(), prefix)
    }

    /// With the right keys, and without whom to trust.
    pub fn untrusted(&self, prefix: &str) -> Place {
        with_keys(self.bare(prefix), ACCESS, SECRET)
    }

    /// With the right keys, in another region than its own.
    pub fn elsewhere(&self, prefix: &str) -> Place {
        let keys = [("access-key-id", ACCESS), ("secret-access-key", SECRET)];
        self.bare(prefix).with_option("region", "elsewhere").with_credentials(&keys)
    }

    /// Whoever owns its buckets.
    pub fn owner(&self) -> Owner {
        Owner { server: self.address, region: REGION, access: ACCESS, secret: SECRET }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it keeps its buckets, each in a folder of its own.
    pub fn buckets(&self) -> &Path {
        self.folder.path()
    }

    /// Where it keeps what is stored below a prefix.
    pub fn folder(&self, prefix: &str) -> PathBuf {
        self.folder.path().join(self.bucket()).join(prefix)
    }

    /// A place that is reached by way of somebody who listens there.
    pub fn behind(&self, gate: SocketAddr, prefix: &str) -> Place {
        self.reached((gate, self.bucket()), prefix, ACCESS, SECRET)
    }

    /// A place in another bucket than the usual one.
    pub fn in_bucket(&self, bucket: &str, prefix: &str) -> Place {
        self.reached((self.address, bucket), prefix, ACCESS, SECRET)
    }

    /// The folder of what was deleted and is kept.
    pub fn versions(&self) -> &Path {
        self.versions.as_ref().unwrap().path()
    }

    /// How many parts it has of uploads that are not complete.
    pub fn parts(&self) -> usize {
        // Where versitygw keeps them until the upload is completed.
        let folder = self.folder(".sgwtmp/multipart");
        if folder.exists() { files(&folder, "") } else { 0 }
    }

    fn bucket(&self) -> &'static str {
        match self.addressing {
            Addressing::Path => BUCKET,
            Addressing::VirtualHosted => BUCKET_BY_HOST,
        }
    }

    fn at(&self, server: SocketAddr, bucket: &str, prefix: &str) -> Place {
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        let place =
            Place::at(format!("s3://{bucket}/{prefix}")).with_option("endpoint", &format!("{scheme}://{server}"));
        match self.addressing {
            Addressing::Path => place,
            Addressing::VirtualHosted => place.with_option("addressing", "virtual-hosted"),
        }
    }

    /// With these keys.
    fn reached(&self, (server, bucket): (SocketAddr, &str), prefix: &str, access: &str, secret: &str) -> Place {
        let place = with_keys(self.at(server, bucket, prefix), access, secret);
        if let Some(certificate) = &self.authority {
            place.renew("ca.crt", certificate);
        }
        place
    }
}

fn with_keys(place: Place, access: &str, secret: &str) -> Place {
    place.with_option("region", REGION).with_credentials(&[("access-key-id", access), ("secret-access-key", secret)])
}

/// The files of a certificate and its key, which a server reads at its start.
fn pair(authority: &Authority) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let leaf = authority.signs(Ipv4Addr::LOCALHOST);
    fs::write(folder.path().join(CERTIFICATE), leaf.certificate).unwrap();
    fs::write(folder.path().join(KEY), leaf.key).unwrap();
    folder
}

impl Server for VersityGw {
    fn place(&self, prefix: &str) -> Place {
        self.reached((self.address, self.bucket()), prefix, ACCESS, SECRET)
    }

    fn flawed(&self, prefix: &str, flaw: Flaw) -> Option<Place> {
        let here = (self.address, self.bucket());
        let missing = match self.addressing {
            Addressing::Path => (self.address, "missing"),
            Addressing::VirtualHosted => {
                let (ip, bucket) = MISSING_BY_HOST;
                (SocketAddr::from((ip, self.address.port())), bucket)
            }
        };
        Some(match flaw {
            Flaw::WrongKey => self.reached(here, prefix, ACCESS, "another"),
            Flaw::WrongAccount => self.reached(here, prefix, "nobody", SECRET),
            Flaw::NoBucket => self.reached(missing, prefix, ACCESS, SECRET),
            Flaw::ReadOnly => self.reached((self.reading, self.bucket()), prefix, ACCESS, SECRET),
        })
    }

    fn parts_left(&self) -> Option<usize> {
        Some(self.parts())
    }
}
