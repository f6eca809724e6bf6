//! The images that the lab runs: what is in each, and the archives in the cache. Asks no registry for anything.

mod archive;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::command::{Command, CommandError};
use crate::compiler;
use crate::debian::find_program;
use crate::progress::Progress;
use crate::tools::{self, Etcd, Tool, ToolError};
use crate::workspace;
pub use archive::{Content, Entry, Image};

/// What holds a pod's namespaces: any program that sleeps.
pub const PAUSE: &str = "registry.k8s.io/pause:3.10";
/// A shell to look around with.
pub const BUSYBOX: &str = "docker.io/library/busybox:1.36";
/// The operator.
pub const OPERATOR: &str = "quorate.dev/operator:dev";
/// The agent.
pub const AGENT: &str = "quorate.dev/agent:dev";
/// A store that speaks S3. No cluster has it of itself.
pub const STORE: &str = "quorate.dev/versitygw:dev";
/// An etcd that says its version and then does not run: what a release may be like that nobody has tried.
pub const CRASHING: &str = "quorate.dev/etcd-that-crashes";
/// The versions that it is there as: another patch of 3.6, and one of 3.7.
pub const CRASHING_PATCH: &str = "3.6.17";
/// See [`CRASHING_PATCH`].
pub const CRASHING_MINOR: &str = "3.7.9";
/// Others of the newest version, which run as all members but the second or the last of three that are told to.
pub const CRASHING_SECOND: &str = "quorate.dev/etcd-that-crashes-as-1";
/// See [`CRASHING_SECOND`].
pub const CRASHING_LAST: &str = "quorate.dev/etcd-that-crashes-as-0";
/// Another one: as the first of three it opens its database, reads its log, and ends.
pub const CRASHING_OPEN: &str = "quorate.dev/etcd-that-crashes-once-open-as-2";
/// etcd.
pub const ETCD: &str = "quay.io/coreos/etcd";
/// A folder with the programs `quorate` and `quorate-agent`, statically linked, to be used instead of building them.
pub const BINARIES: &str = "QUORATE_BINARIES";

const STATIC_BUSYBOX: &str = "/bin/busybox";
/// It says the version that is in the file beside it.
const CRASHING_SCRIPT: &str = "#!/bin/sh\ncase \"$*\" in *--version) read version < /version; \
                               echo \"etcd Version: $version\"; exit 0 ;; esac\n\
                               echo 'it ends, as it was made to' >&2\nexit 1\n";
/// It runs the real one unless it is to be the member whose number is in the file beside it.
const CRASHING_AS_SCRIPT: &str = "#!/bin/sh\nread number < /number\nfor last; do :; done\nfor argument; do\n\
                                  case \"$last $argument\" in\n--version*) ;;\n*--name=*-$number)\n\
                                  echo 'it ends, as it was made to' >&2; exit 1 ;;\nesac\ndone\nexec /real/etcd \"$@\"\n";
/// The same, but etcd has opened its database and read its log by then: it has said that it is about to begin. It ends with 2.
const CRASHING_OPEN_SCRIPT: &str = "#!/bin/sh\nread number < /number\nfor last; do :; done\nfor argument; do\n\
                                    case \"$last $argument\" in\n--version*) ;;\n*--name=*-$number)\n\
                                    sh -c 'echo $$; exec /real/etcd \"$@\"' sh \"$@\" 2>&1 | { read -r pid\n\
                                    while read -r line; do echo \"$line\" >&2; case \"$line\" in\n\
                                    *'restarting local member'*) kill -KILL \"$pid\"\n\
                                    echo 'it ends with its database open, as it was made to' >&2; exit 2 ;; esac; done\n\
                                    echo 'it ends by itself, and never told that it has read its log' >&2; exit 3; }\nexit ;;\n\
                                    esac\ndone\nexec /real/etcd \"$@\"\n";
const PASSWD: &str = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";
const SEARCH_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why an image can't be made.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A Go tool is needed and can't be had.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// Our own programs can't be built.
    #[error("failed to build the operator and the agent; set {BINARIES} to a folder that holds them to use those")]
    Build(#[from] CommandError),
    /// The archive can't be written.
    #[error("failed to write the archive of {name}")]
    Write {
        /// The image.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// One of our own programs isn't where it should be.
    #[error("there is no program {}", .0.display())]
    NoProgram(PathBuf),
}

/// Who holds it writes archives.
const LOCK: &str = "lock";

/// An image's archive in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// The image's full name.
    pub name: String,
    /// A hash of its content.
    pub key: String,
    /// The archive.
    pub path: PathBuf,
}

/// The images that are not ours: etcd, the pause image and a shell.
pub async fn foreign(progress: &Progress) -> Result<Vec<Archive>, ImageError> {
    let mut images = vec![pause(), busybox().await?, crashing(CRASHING_PATCH), crashing(CRASHING_MINOR)];
    for etcd in Etcd::SUPPORTED {
        let built = tools::build(Tool::Etcd(etcd), progress).await?;
        images.push(etcd_image(etcd, &built.bin()));
    }
    archive_all(images, progress).await
}

/// What scenes alone run as pods: a store, an etcd of before, and some that crash as one member.
pub async fn of_scenes(progress: &Progress) -> Result<Vec<Archive>, ImageError> {
    let store = tools::build(Tool::VersityGw, progress).await?.program("versitygw");
    let before = tools::build(Tool::Etcd(Etcd::BelowFloor), progress).await?;
    let newest = tools::build(Tool::Etcd(Etcd::V3_7), progress).await?;
    let images = vec![
        own_image(STORE, "versitygw", store),
        etcd_image(Etcd::BelowFloor, &before.bin()),
        crashing_as("1", CRASHING_SECOND, CRASHING_AS_SCRIPT, newest.program("etcd")),
        crashing_as("0", CRASHING_LAST, CRASHING_AS_SCRIPT, newest.program("etcd")),
        crashing_as("2", CRASHING_OPEN, CRASHING_OPEN_SCRIPT, newest.program("etcd")),
    ];
    archive_all(images, progress).await
}

/// The operator's and the agent's image, from programs that are built now or lie in the folder that `QUORATE_BINARIES`
/// names.
pub async fn own(progress: &Progress) -> Result<Vec<Archive>, ImageError> {
    let [operator, agent] = programs(progress).await?;
    let images = vec![own_image(OPERATOR, "quorate", operator), own_image(AGENT, "quorate-agent", agent)];
    archive_all(images, progress).await
}

/// The operator's and the agent's program.
pub async fn programs(progress: &Progress) -> Result<[PathBuf; 2], ImageError> {
    let folder = match std::env::var_os(BINARIES) {
        Some(folder) => PathBuf::from(folder),
        None => build_own(progress).await?,
    };
    let program = |name: &str| {
        let path = folder.join(name);
        if path.is_file() { Ok(path) } else { Err(ImageError::NoProgram(path)) }
    };
    Ok([program("quorate")?, program("quorate-agent")?])
}

/// Builds our programs so that they run in an image with nothing else in it.
async fn build_own(progress: &Progress) -> Result<PathBuf, ImageError> {
    let mut step = progress.step("quorate and quorate-agent");
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // Without a target, cargo would apply the flags to build scripts and macros too.
    let command = Command::new("cargo")
        .folder(&workspace::root())
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .args(["build", "--release", "--bins", "--target", &target, "-p", "quorate", "-p", "quorate-backup"]);
    let line = command.to_string();
    let work = tokio::task::spawn_blocking(move || compiler::run(&command, compiler::CARGO, &mut step).map(|()| step));
    let built = work.await.map_err(|error| CommandError::Spawn { line, source: io::Error::other(error) })?;
    built?.done("built");
    let target_folder = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(workspace::root().join(target_folder).join(target).join("release"))
}

fn file(path: impl Into<String>, content: Content) -> Entry {
    let mode = match content {
        Content::File(_) | Content::Folder => 0o755,
        Content::Text(_) => 0o644,
        Content::Link(_) => 0o777,
    };
    Entry { path: path.into(), mode, content }
}

/// What every image of ours has besides its program: names for the users, and a place for temporary files.
fn ground() -> Vec<Entry> {
    vec![
        file("etc/passwd", Content::Text(PASSWD)),
        file("etc/group", Content::Text(GROUP)),
        Entry { mode: 0o1777, ..file("tmp", Content::Folder) },
    ]
}

/// An image with one program, which runs as nobody.
fn own_image(name: &str, program: &str, path: PathBuf) -> Image {
    let mut entries = ground();
    entries.push(file(program, Content::File(path)));
    let entrypoint = format!("/{program}");
    let config = json!({ "User": "65532:65532", "Entrypoint": [entrypoint], "Env": [SEARCH_PATH], "WorkingDir": "/" });
    Image { name: name.into(), entries, config }
}

/// Laid out as the official image: https://github.com/etcd-io/etcd/blob/v3.6.0/Dockerfile, on distroless/static.
fn etcd_image(etcd: Etcd, bin: &Path) -> Image {
    let mut entries = ground();
    for program in ["etcd", "etcdctl", "etcdutl"] {
        entries.push(file(format!("usr/local/bin/{program}"), Content::File(bin.join(program))));
    }
    entries.push(file("etc/nsswitch.conf", Content::Text("hosts: files dns\n")));
    entries.extend(["var/etcd", "var/lib/etcd"].map(|folder| file(folder, Content::Folder)));
    let config = json!({
        "Env": [SEARCH_PATH], "WorkingDir": "/var/lib/etcd", "Cmd": ["/usr/local/bin/etcd"],
        "ExposedPorts": { "2379/tcp": {}, "2380/tcp": {} },
    });
    Image { name: format!("{ETCD}:v{}", etcd.version()), entries, config }
}

/// A shell script in etcd's place.
fn scripted(name: String, script: &'static str, beside: Vec<Entry>) -> Image {
    let mut entries = ground();
    entries.push(file("bin/busybox", Content::File(STATIC_BUSYBOX.into())));
    entries.push(file("bin/sh", Content::Link("/bin/busybox")));
    entries.extend(beside);
    entries.push(Entry { mode: 0o755, ..file("usr/local/bin/etcd", Content::Text(script)) });
    let config = json!({ "Env": [SEARCH_PATH], "Cmd": ["/usr/local/bin/etcd"] });
    Image { name, entries, config }
}

/// One that never runs.
fn crashing(version: &'static str) -> Image {
    scripted(format!("{CRASHING}:v{version}"), CRASHING_SCRIPT, vec![file("version", Content::Text(version))])
}

/// One of the newest version that does not run as members of this number.
fn crashing_as(number: &'static str, name: &str, script: &'static str, newest: PathBuf) -> Image {
    let beside = vec![file("number", Content::Text(number)), file("real/etcd", Content::File(newest))];
    scripted(format!("{name}:v{}", Etcd::V3_7.version()), script, beside)
}

fn pause() -> Image {
    let entries = vec![file("busybox", Content::File(STATIC_BUSYBOX.into()))];
    let config = json!({ "Entrypoint": ["/busybox", "sleep", "2147483647"], "User": "65535:65535" });
    Image { name: PAUSE.into(), entries, config }
}

async fn busybox() -> Result<Image, ImageError> {
    let mut entries = ground();
    entries.push(file("bin/busybox", Content::File(STATIC_BUSYBOX.into())));
    let applets = Command::new(STATIC_BUSYBOX).arg("--list").run().await?;
    let links = applets.lines().filter(|applet| *applet != "busybox");
    entries.extend(links.map(|applet| file(format!("bin/{applet}"), Content::Link("/bin/busybox"))));
    let config = json!({ "Env": [SEARCH_PATH], "Cmd": ["sh"] });
    Ok(Image { name: BUSYBOX.into(), entries, config })
}

async fn archive_all(images: Vec<Image>, progress: &Progress) -> Result<Vec<Archive>, ImageError> {
    let mut archives = vec![];
    for image in images {
        let name = image.name.clone();
        let step = progress.step(&name);
        let worked = tokio::task::spawn_blocking(move || archive(&image, &workspace::images())).await;
        let worked = worked.map_err(io::Error::other).and_then(|archived| archived);
        let (archive, written) = worked.map_err(|source| ImageError::Write { name, source })?;
        if written {
            step.done("archived");
        }
        archives.push(archive);
    }
    Ok(archives)
}

/// The image's archive in this folder, and whether it had to be written. One at a time of all that work with the folder: labs
/// that are brought up beside each other would write the same archive.
fn archive(image: &Image, folder: &Path) -> io::Result<(Archive, bool)> {
    let key = image.key()?;
    let prefix = image.name.replace(['/', ':'], "_");
    let path = folder.join(format!("{prefix}-{key}.tar"));
    let archive = Archive { name: image.name.clone(), key, path };
    let _lock = crate::lock::hold(&folder.join(LOCK))?;
    if archive.path.exists() {
        return Ok((archive, false));
    }
    image.write(&archive.path)?;
    for entry in fs::read_dir(folder)?.flatten() {
        let older = entry.file_name().to_string_lossy().starts_with(&format!("{prefix}-"));
        if older && entry.path() != archive.path {
            fs::remove_file(entry.path())?;
        }
    }
    Ok((archive, true))
}

/// The container tool of this machine, if there is one that answers.
pub async fn container_tool() -> Option<&'static str> {
    for tool in ["docker", "podman"] {
        if find_program(tool).is_some() && Command::new(tool).arg("info").succeeds().await {
            return Some(tool);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn an_archive_is_written_once_by_all_who_want_it_at_the_same_time() {
        const WRITERS: usize = 8;
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        fs::write(&program, vec![b'x'; 1 << 20]).unwrap();
        let entries = vec![Entry { path: "x".into(), mode: 0o755, content: Content::File(program) }];
        let image = Image { name: "x/y:z".into(), entries, config: json!({}) };
        let begin = std::sync::Barrier::new(WRITERS);
        let archived: Vec<_> = std::thread::scope(|scope| {
            let one = || {
                begin.wait();
                archive(&image, folder.path())
            };
            let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(one)).collect();
            writers.into_iter().map(|writer| writer.join().unwrap().unwrap()).collect()
        });
        assert_eq!(archived.iter().filter(|(_, written)| *written).count(), 1);
        let paths: BTreeSet<_> = archived.into_iter().map(|(archive, _)| archive.path).collect();
        assert_eq!(paths.len(), 1);
        assert!(paths.iter().all(|path| path.exists()));
    }

    #[test]
    fn etcd_lies_where_the_official_image_has_it() {
        let image = etcd_image(Etcd::V3_6, Path::new("/bin"));
        assert_eq!(image.name, "quay.io/coreos/etcd:v3.6.16");
        for path in ["usr/local/bin/etcd", "usr/local/bin/etcdctl", "usr/local/bin/etcdutl", "var/lib/etcd", "tmp"] {
            assert!(image.entries.iter().any(|entry| entry.path == path), "{path}");
        }
        assert_eq!(image.config["Cmd"], json!(["/usr/local/bin/etcd"]));
    }

    #[test]
    fn the_one_that_crashes_says_the_version_that_it_is_tagged_with() {
        let image = crashing(CRASHING_MINOR);
        assert_eq!(image.name, "quorate.dev/etcd-that-crashes:v3.7.9");
        let said = image.entries.iter().find(|entry| entry.path == "version").unwrap();
        assert_eq!(said.content, Content::Text("3.7.9"));
    }

    #[test]
    fn our_programs_run_as_nobody_from_the_root() {
        let image = own_image(OPERATOR, "quorate", "/x/quorate".into());
        assert_eq!(image.config["User"], "65532:65532");
        assert_eq!(image.config["Entrypoint"], json!(["/quorate"]));
        let program = image.entries.iter().find(|entry| entry.path == "quorate").unwrap();
        assert_eq!((program.mode, &program.content), (0o755, &Content::File("/x/quorate".into())));
    }

    /// A Docker host builds it; here it is only held against the images that all tests run on.
    #[test]
    fn the_containerfile_says_the_same_of_both_images() {
        let text = std::fs::read_to_string(workspace::root().join("deploy/Containerfile")).unwrap();
        let mut stages: Vec<(&str, Vec<&str>)> = vec![];
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            match line.strip_prefix("FROM ") {
                Some(from) => stages.push((from, vec![])),
                None => stages.iter_mut().last().into_iter().for_each(|(_, lines)| lines.push(line)),
            }
        }
        let stage = |name: &str| {
            let suffix = format!(" AS {name}");
            &stages.iter().find(|(from, _)| from.ends_with(&suffix)).unwrap_or_else(|| panic!("no stage {name}")).1
        };
        for (target, program) in [("operator", "quorate"), ("agent", "quorate-agent")] {
            let image = own_image(OPERATOR, program, "/x".into());
            for line in [
                format!("COPY --from=build /out/{program} /{program}"),
                format!("ENTRYPOINT {}", image.config["Entrypoint"]),
            ] {
                assert!(stage(target).contains(&line.as_str()), "{target} has no {line}");
            }
            assert!(stages.iter().any(|(from, _)| *from == format!("ground AS {target}")));
        }
        let user = format!("USER {}", own_image(OPERATOR, "quorate", "/x".into()).config["User"].as_str().unwrap());
        assert!(stage("ground").contains(&user.as_str()));
        let build = stage("build").join("\n");
        for words in ["-C target-feature=+crt-static", "--bins -p quorate -p quorate-backup", "--release --locked"] {
            assert!(build.contains(words), "{words}");
        }
        let rust = env!("CARGO_PKG_RUST_VERSION");
        assert!(stages.iter().any(|(from, _)| from.starts_with(&format!("docker.io/library/rust:{rust}-"))), "{rust}");
    }
}
