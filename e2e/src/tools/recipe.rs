//! The programs that a local cluster and the tests of backups are made of, and how each is built. Builds nothing.

use std::fmt;

use crate::debian::Need;
use crate::digest::Sha256;

/// A version of etcd that is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Etcd {
    /// 3.5, the oldest.
    V3_5,
    /// 3.6, the default; the control plane's own etcd too.
    V3_6,
    /// 3.7, the newest.
    V3_7,
    /// A 3.5 from which nobody may go to 3.6: what a cluster from before that was known may run. Only one scene takes it.
    BelowFloor,
}

impl Etcd {
    /// Those that a cluster goes through.
    pub const SUPPORTED: [Self; 3] = [Self::V3_5, Self::V3_6, Self::V3_7];

    /// The full version, as pinned in the tool's go.mod.
    pub const fn version(self) -> &'static str {
        match self {
            Self::V3_5 => "3.5.35",
            Self::V3_6 => "3.6.16",
            Self::V3_7 => "3.7.3",
            Self::BelowFloor => "3.5.21",
        }
    }
}

/// A set of programs that is built from one pinned module or package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The control plane, kubelet, kube-proxy and kubectl.
    Kubernetes,
    /// The container runtime.
    Containerd,
    /// What starts a container.
    Runc,
    /// Names of Services and pods.
    CoreDns,
    /// etcd, etcdctl and etcdutl.
    Etcd(Etcd),
    /// An S3 store on a folder. A local cluster does without.
    VersityGw,
    /// A store that speaks Azure's protocol. A local cluster does without.
    Azurite,
    /// What finds damage in a database file of etcd's. A local cluster does without.
    Bbolt,
    /// What encrypted backups can be read with by hand. A local cluster does without.
    Age,
}

impl Tool {
    /// What a local cluster is made of, that first which the rest of the work waits for; and what the tests of backups take,
    /// which run where nothing can be fetched any more. Not what one scene alone takes.
    pub const ALL: [Self; 11] = [
        Self::Kubernetes,
        Self::Etcd(Etcd::V3_6),
        Self::Containerd,
        Self::Runc,
        Self::CoreDns,
        Self::Etcd(Etcd::V3_5),
        Self::Etcd(Etcd::V3_7),
        Self::VersityGw,
        Self::Azurite,
        Self::Bbolt,
        Self::Age,
    ];

    /// The folder of its go.mod or package.json, which is also its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kubernetes => "kubernetes",
            Self::Containerd => "containerd",
            Self::Runc => "runc",
            Self::CoreDns => "coredns",
            Self::Etcd(Etcd::V3_5) => "etcd-3.5",
            Self::Etcd(Etcd::V3_6) => "etcd-3.6",
            Self::Etcd(Etcd::V3_7) => "etcd-3.7",
            Self::Etcd(Etcd::BelowFloor) => "etcd-below-floor",
            Self::VersityGw => "versitygw",
            Self::Azurite => "azurite",
            Self::Bbolt => "bbolt",
            Self::Age => "age",
        }
    }

    /// How it is built.
    pub const fn recipe(self) -> Recipe {
        match self {
            Self::Kubernetes => Recipe::Go(GoRecipe {
                module: "k8s.io/kubernetes",
                packages: &[
                    "k8s.io/kubernetes/cmd/kube-apiserver",
                    "k8s.io/kubernetes/cmd/kube-controller-manager",
                    "k8s.io/kubernetes/cmd/kube-scheduler",
                    "k8s.io/kubernetes/cmd/kubelet",
                    "k8s.io/kubernetes/cmd/kube-proxy",
                    "k8s.io/kubernetes/cmd/kubectl",
                ],
                // Without these the server calls itself v0.0.0 and kubectl complains of the skew.
                ldflags: "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
                          -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36",
                ..GoRecipe::PLAIN
            }),
            Self::Containerd => Recipe::Go(GoRecipe {
                module: "github.com/containerd/containerd/v2",
                packages: &[
                    "github.com/containerd/containerd/v2/cmd/containerd",
                    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                    "github.com/containerd/containerd/v2/cmd/ctr",
                ],
                ..GoRecipe::PLAIN
            }),
            Self::Runc => Recipe::Go(GoRecipe {
                module: "github.com/opencontainers/runc",
                packages: &["github.com/opencontainers/runc"],
                // runc enters namespaces in C before Go starts; seccomp profiles need libseccomp.
                cgo: true,
                tags: "seccomp",
                needs: &[
                    Need::Program("gcc", "gcc"),
                    Need::File("/usr/include/unistd.h", "libc6-dev"),
                    Need::Program("pkg-config", "pkg-config"),
                    Need::Library("libseccomp", "libseccomp-dev"),
                ],
                ..GoRecipe::PLAIN
            }),
            Self::CoreDns => Recipe::Go(GoRecipe {
                module: "github.com/coredns/coredns",
                packages: &["github.com/coredns/coredns"],
                ..GoRecipe::PLAIN
            }),
            Self::Etcd(_) => Recipe::Go(GoRecipe {
                module: "go.etcd.io/etcd/server/v3",
                packages: &["go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdutl/v3"],
                rename: Some(("server", "etcd")),
                ..GoRecipe::PLAIN
            }),
            Self::Azurite => Recipe::Npm(NpmRecipe { programs: &["azurite-blob"] }),
            Self::VersityGw => Recipe::Go(GoRecipe {
                module: "github.com/versity/versitygw",
                packages: &["github.com/versity/versitygw/cmd/versitygw"],
                ..GoRecipe::PLAIN
            }),
            Self::Bbolt => Recipe::Go(GoRecipe {
                module: "go.etcd.io/bbolt",
                packages: &["go.etcd.io/bbolt/cmd/bbolt"],
                ..GoRecipe::PLAIN
            }),
            Self::Age => Recipe::Go(GoRecipe {
                module: "filippo.io/age",
                packages: &["filippo.io/age/cmd/age", "filippo.io/age/cmd/age-keygen"],
                ..GoRecipe::PLAIN
            }),
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a tool is built.
#[derive(Debug, Clone, Copy)]
pub enum Recipe {
    /// From a Go module.
    Go(GoRecipe),
    /// From packages of npm, which are used as they come.
    Npm(NpmRecipe),
}

impl Recipe {
    /// What the build needs of the operating system.
    pub const fn needs(&self) -> &'static [Need] {
        match self {
            Self::Go(recipe) => recipe.needs,
            Self::Npm(_) => &[Need::Program("node", "nodejs"), Need::Program("npm", "npm")],
        }
    }
}

/// How Go programs are built.
#[derive(Debug, Clone, Copy)]
pub struct GoRecipe {
    /// The module whose version is the tool's.
    pub module: &'static str,
    /// The packages to build, each a program.
    pub packages: &'static [&'static str],
    /// Whether it holds C.
    pub cgo: bool,
    /// Build tags, separated by commas.
    pub tags: &'static str,
    /// Flags for the linker.
    pub ldflags: &'static str,
    /// A program that is better known under another name: (built as, called).
    pub rename: Option<(&'static str, &'static str)>,
    /// What the build needs besides Go.
    pub needs: &'static [Need],
}

impl GoRecipe {
    const PLAIN: Self =
        Self { module: "", packages: &[], cgo: false, tags: "", ldflags: "-s -w", rename: None, needs: &[] };

    /// The arguments of `go` that decide what comes out.
    pub fn flags(&self) -> [&'static str; 7] {
        // The paths of this machine and the state of this repository must not end up in the programs.
        ["build", "-trimpath", "-buildvcs=false", "-tags", self.tags, "-ldflags", self.ldflags]
    }

    /// The names of the programs that come out.
    pub fn programs(&self) -> impl Iterator<Item = &'static str> {
        let Self { packages, rename, .. } = *self;
        packages.iter().map(move |package| {
            let name = package.trim_end_matches("/v3").rsplit('/').next().unwrap_or(package);
            match rename {
                Some((built, called)) if built == name => called,
                Some(_) | None => name,
            }
        })
    }

    /// What the result depends on, as a short key: a tool is built again exactly when this changes.
    pub fn key(&self, go_version: &str, go_mod: &[u8], go_sum: &[u8]) -> String {
        let Self { module: _, packages, cgo, tags: _, ldflags: _, rename: _, needs: _ } = self;
        let mut digest = Sha256::new().field(go_version.trim()).field(go_mod).field(go_sum);
        for text in self.flags().iter().chain(*packages) {
            digest = digest.field(text);
        }
        digest.field([u8::from(*cgo)]).key()
    }
}

/// How programs of npm are installed.
#[derive(Debug, Clone, Copy)]
pub struct NpmRecipe {
    /// The programs that are used.
    pub programs: &'static [&'static str],
}

impl NpmRecipe {
    /// The arguments of `npm`. No script of a package runs, and nothing is asked but for the packages.
    pub const FLAGS: [&'static str; 6] =
        ["ci", "--ignore-scripts", "--omit=dev", "--omit=optional", "--no-audit", "--no-fund"];

    /// What the result depends on, as a short key.
    pub fn key(&self, package: &[u8], lock: &[u8]) -> String {
        let Self { programs } = self;
        let mut digest = Sha256::new().field(package).field(lock);
        for text in Self::FLAGS.iter().chain(*programs) {
            digest = digest.field(text);
        }
        digest.key()
    }
}

/// The version of `module` that a go.mod asks for, as in `v1.36.3`.
pub fn pinned_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word == "require");
        (words.next() == Some(module)).then(|| words.next()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tools that are built from Go.
    fn of_go() -> impl Iterator<Item = (Tool, GoRecipe)> {
        Tool::ALL.into_iter().chain([Tool::Etcd(Etcd::BelowFloor)]).filter_map(|tool| match tool.recipe() {
            Recipe::Go(recipe) => Some((tool, recipe)),
            Recipe::Npm(_) => None,
        })
    }

    fn go(wanted: Tool) -> GoRecipe {
        of_go().find(|(tool, _)| *tool == wanted).unwrap().1
    }

    fn go_mod(tool: Tool) -> String {
        std::fs::read_to_string(crate::workspace::tool_module(tool.name()).join("go.mod")).unwrap()
    }

    #[test]
    fn the_key_depends_on_all_that_decides_the_result() {
        let recipe = go(Tool::Runc);
        let key = recipe.key("go1.26.8", b"mod", b"sum");
        assert_eq!(key, recipe.key("go1.26.8\n", b"mod", b"sum"));
        assert_ne!(key, recipe.key("go1.26.9", b"mod", b"sum"));
        assert_ne!(key, recipe.key("go1.26.8", b"mod2", b"sum"));
        assert_ne!(key, recipe.key("go1.26.8", b"mod", b"sum2"));
        assert_ne!(key, GoRecipe { tags: "", ..recipe }.key("go1.26.8", b"mod", b"sum"));
        assert_ne!(key, GoRecipe { cgo: false, ..recipe }.key("go1.26.8", b"mod", b"sum"));
        assert_ne!(key, GoRecipe { ldflags: "", ..recipe }.key("go1.26.8", b"mod", b"sum"));
        assert_ne!(key, GoRecipe { packages: &["x"], ..recipe }.key("go1.26.8", b"mod", b"sum"));
    }

    #[test]
    fn programs_are_called_by_their_known_names() {
        let programs = |tool: Tool| go(tool).programs().collect::<Vec<_>>();
        assert_eq!(programs(Tool::Etcd(Etcd::V3_7)), ["etcd", "etcdctl", "etcdutl"]);
        assert_eq!(programs(Tool::Containerd), ["containerd", "containerd-shim-runc-v2", "ctr"]);
    }

    #[test]
    fn versions_are_those_that_go_mod_pins() {
        for etcd in Etcd::SUPPORTED.into_iter().chain([Etcd::BelowFloor]) {
            let pinned = go_mod(Tool::Etcd(etcd));
            let version = format!("v{}", etcd.version());
            for package in go(Tool::Etcd(etcd)).packages {
                assert_eq!(pinned_version(&pinned, package), Some(version.as_str()));
            }
        }
        let kubernetes = go(Tool::Kubernetes);
        let pinned = go_mod(Tool::Kubernetes);
        let version = pinned_version(&pinned, kubernetes.module).unwrap();
        assert!(kubernetes.ldflags.contains(&format!("gitVersion={version} ")), "{version}");
        // What checks databases is what the newest etcd writes them with.
        let bbolt = [Tool::Bbolt, Tool::Etcd(Etcd::V3_7)].map(go_mod);
        let [checks, writes] = bbolt.each_ref().map(|pinned| pinned_version(pinned, go(Tool::Bbolt).module));
        assert!(checks.is_some() && checks == writes, "{checks:?} instead of {writes:?}");
    }

    #[test]
    fn every_program_is_a_tool_line_of_its_module() {
        for (tool, recipe) in of_go() {
            let pinned = go_mod(tool);
            for package in recipe.packages {
                let line = pinned.lines().any(|line| line.trim().trim_start_matches("tool ") == *package);
                assert!(line, "{tool}: no tool line for {package}");
            }
        }
    }
}
