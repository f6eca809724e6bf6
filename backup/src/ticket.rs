//! The start ticket: what the operator writes on a pod to let its etcd start, and what the launcher demands of it.
//! It only reads and renders; whether the volume fits is `launch::volume`'s question.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The pod annotation that carries the ticket; the downwardAPI volume shows it to the launcher as a file.
pub const ANNOTATION: &str = "quorate.dev/ticket";

/// The longest ticket that is read, in bytes. A real one has some 2 KiB; Kubernetes allows 256 KiB of annotations.
pub const MAX_BYTES: usize = 64 * 1024;

/// The folder below the volume's root that etcd gets as its data directory: the root itself may hold `lost+found`.
pub const DATA_FOLDER: &str = "data";

/// Flags that would move etcd away from the data directory that the launcher checks: `--config-file` makes etcd ignore
/// every other flag, `--wal-dir` keeps the log on another place.
const ESCAPING_FLAGS: [&str; 2] = ["config-file", "wal-dir"];

macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps the text as it is.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
    };
}

text!(
    /// A member's name, which is also its pod's and its claim's: `<cluster>-<serial>`.
    MemberName
);
text!(
    /// The UID of what keeps the member's data: its claim's, or for ephemeral storage its pod's.
    VolumeUid
);
text!(
    /// What a launcher has marked an empty volume with, when it began to wait: another one each time.
    VolumeMark
);
text!(
    /// The UID of a pod: of one incarnation, never again of another.
    PodUid
);
text!(
    /// An etcd version as `etcd --version` says it: `3.6.16`.
    EtcdVersion
);

impl VolumeMark {
    const DIGITS: usize = 16;

    /// A new one.
    pub fn random() -> Self {
        Self(format!("{:0digits$x}", fastrand::u64(..), digits = Self::DIGITS))
    }

    /// Whether a launcher may have made it: it comes to the operator by the network, and goes into the ledger for good.
    pub fn is_well_formed(&self) -> bool {
        self.0.len() == Self::DIGITS && self.0.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// What the member's identity may be started on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    /// The first start of this identity: the volume carries the ticket's mark and no more, or an earlier try on it left no
    /// entry.
    Create,
    /// The first start of this identity, on a backup that was restored onto the volume for it, and on nothing else.
    Restored,
    /// Every later start: the volume carries this member and at least one entry.
    Resume,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Create => "create",
            Self::Restored => "restored",
            Self::Resume => "resume",
        })
    }
}

/// Permission to start one etcd: for one member, on one volume, in one version, with these flags and no others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Ticket {
    /// What the volume has to look like.
    pub start: Start,
    /// The member that this is for.
    pub member: MemberName,
    /// The volume that this is for.
    pub volume: VolumeUid,
    /// To create: what the volume was marked with when that was first allowed. One that was emptied since has another mark or
    /// none, and whatever was written there is lost. Nothing: it may be empty as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<VolumeMark>,
    /// The version that the binary must have.
    pub version: EtcdVersion,
    /// Everything that etcd gets on its command line, each as `--name=value`.
    pub flags: Vec<String>,
}

/// Why a text is no ticket, or one that must not be followed.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    /// Longer than [`MAX_BYTES`].
    #[error("the ticket has {0} bytes, at most {MAX_BYTES} are read")]
    TooLong(usize),
    /// Not JSON of the ticket's form.
    #[error("failed to read the ticket: {0}")]
    Form(#[from] serde_json::Error),
    /// A flag that is not written as `--name=value`.
    #[error("the ticket's flag {0:?} is not of the form --name=value")]
    Flag(String),
    /// A flag that would let etcd leave the data directory that was checked.
    #[error("the ticket's flag --{0} would lead etcd away from the data directory that is checked")]
    Escapes(String),
    /// A flag that must be there exactly once, with this value.
    #[error("the ticket must have --{name}={value} exactly once")]
    Expected {
        /// The flag's name.
        name: &'static str,
        /// The value that it must have.
        value: String,
    },
}

impl Ticket {
    /// Reads a ticket.
    pub fn parse(text: &str) -> Result<Self, TicketError> {
        if text.len() > MAX_BYTES {
            return Err(TicketError::TooLong(text.len()));
        }
        Ok(serde_json::from_str(text)?)
    }

    /// The ticket as the annotation carries it: JSON on one line.
    pub fn render(&self) -> Result<String, TicketError> {
        let text = serde_json::to_string(self)?;
        if text.len() > MAX_BYTES {
            return Err(TicketError::TooLong(text.len()));
        }
        Ok(text)
    }

    /// Demands that etcd, given these flags, is this member and keeps everything in `data_dir`.
    pub fn check_flags(&self, data_dir: &str) -> Result<(), TicketError> {
        let mut names = Vec::new();
        let mut data_dirs = Vec::new();
        for flag in &self.flags {
            let (name, value) = flag
                .strip_prefix("--")
                .and_then(|rest| rest.split_once('='))
                .filter(|(name, _)| !name.is_empty() && !name.starts_with('-'))
                .ok_or_else(|| TicketError::Flag(flag.clone()))?;
            if ESCAPING_FLAGS.contains(&name) {
                return Err(TicketError::Escapes(name.to_owned()));
            }
            match name {
                "name" => names.push(value),
                "data-dir" => data_dirs.push(value),
                _ => (),
            }
        }
        exactly("name", &names, self.member.as_str())?;
        exactly("data-dir", &data_dirs, data_dir)
    }
}

/// Demands that a flag is there once with this value. Go's flag package would let the last of several win.
fn exactly(name: &'static str, found: &[&str], value: &str) -> Result<(), TicketError> {
    match found {
        [only] if *only == value => Ok(()),
        _ => Err(TicketError::Expected { name, value: value.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA_DIR: &str = "/var/lib/etcd/data";

    fn ticket() -> Ticket {
        Ticket {
            start: Start::Create,
            member: "blue-0".into(),
            volume: "3f0c".into(),
            mark: None,
            version: "3.6.16".into(),
            flags: vec!["--name=blue-0".into(), format!("--data-dir={DATA_DIR}")],
        }
    }

    /// Launchers of before read it, and refuse a field that they don't know: one that is added later is left out where it would say
    /// what was so before.
    #[test]
    fn its_json_is_the_agreed_one() {
        let text = r#"{"start":"create","member":"blue-0","volume":"3f0c","version":"3.6.16","flags":["--name=blue-0","--data-dir=/var/lib/etcd/data"]}"#;
        assert_eq!(ticket().render().unwrap(), text);
        assert_eq!(Ticket::parse(text).unwrap(), ticket());
        for start in [Start::Create, Start::Restored, Start::Resume] {
            assert_eq!(Ticket::parse(&text.replace("create", &start.to_string())).unwrap().start, start);
        }
        let marked = Ticket { mark: Some("a1".into()), ..ticket() };
        let text = text.replace(r#""version""#, r#""mark":"a1","version""#);
        assert_eq!(marked.render().unwrap(), text);
        assert_eq!(Ticket::parse(&text).unwrap(), marked);
    }

    #[test]
    fn unknown_fields_missing_fields_and_length_are_refused() {
        let unknown = ticket().render().unwrap().replace(r#""start""#, r#""extra":1,"start""#);
        assert!(matches!(Ticket::parse(&unknown), Err(TicketError::Form(_))));
        assert!(matches!(Ticket::parse(r#"{"start":"create"}"#), Err(TicketError::Form(_))));
        assert!(matches!(Ticket::parse(""), Err(TicketError::Form(_))));
        assert!(matches!(Ticket::parse(&" ".repeat(MAX_BYTES + 1)), Err(TicketError::TooLong(_))));
        let long = Ticket { flags: vec!["x".repeat(MAX_BYTES)], ..ticket() };
        assert!(matches!(long.render(), Err(TicketError::TooLong(_))));
    }

    #[test]
    fn the_flags_must_name_this_member_and_the_checked_folder_once() {
        ticket().check_flags(DATA_DIR).unwrap();
        let with = |flag: &str| {
            let mut changed = ticket();
            changed.flags.push(flag.to_owned());
            changed.check_flags(DATA_DIR).unwrap_err().to_string()
        };
        assert!(with("--name=blue-1").contains("--name=blue-0 exactly once"));
        assert!(with("--data-dir=/tmp").contains("--data-dir=/var/lib/etcd/data exactly once"));
        assert!(with("--wal-dir=/tmp").contains("--wal-dir"));
        assert!(with("--config-file=/tmp/x").contains("--config-file"));
        for odd in ["-data-dir=/tmp", "---data-dir=/tmp", "--data-dir", "data-dir=/tmp", "--=x", ""] {
            assert!(with(odd).contains("--name=value"), "{odd}");
        }
        let none = Ticket { flags: vec!["--name=blue-0".into()], ..ticket() };
        assert!(matches!(none.check_flags(DATA_DIR), Err(TicketError::Expected { name: "data-dir", .. })));
    }

    proptest! {
        #[test]
        fn any_text_is_a_ticket_or_an_error(text in ".{0,400}") {
            if let Ok(ticket) = Ticket::parse(&text) {
                prop_assert_eq!(Ticket::parse(&ticket.render().unwrap()).unwrap(), ticket);
            }
        }

        #[test]
        fn every_ticket_survives_its_own_json(member in ".{0,20}", volume in ".{0,20}", flags in prop::collection::vec(".{0,30}", 0..8)) {
            let ticket = Ticket { member: member.into(), volume: volume.into(), flags, ..ticket() };
            prop_assert_eq!(Ticket::parse(&ticket.render().unwrap()).unwrap(), ticket);
        }
    }
}
