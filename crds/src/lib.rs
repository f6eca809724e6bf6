//! The API types of Quorate and their validation. This crate describes; it decides nothing and talks to nobody.

mod archive;
mod backup;
mod bootstrap;
mod cluster;
pub mod flags;
mod ledger;
pub mod manifest;
pub mod names;
pub mod quantity;
mod reason;
pub mod reference;
mod resources;
pub mod rules;
mod scheduling;
mod schema;
mod service;
mod status;
mod storage;
mod store;
mod tls;
mod tuning;

pub use archive::{BackupRetention, BackupVerification, BeforeUpgrade, ContinuousBackup};
pub use backup::{BackupPhase, BackupProgress, DeletionPolicy, EtcdBackup, EtcdBackupSpec, EtcdBackupStatus};
pub use bootstrap::{Bootstrap, LocalBackup, Restore};
pub use cluster::{EtcdCluster, EtcdClusterSpec, Image, LocalSecret, PullPolicy};
pub use ledger::{FailedRelease, HexId, Ledger, LedgerMember, LedgerRelease};
pub use quantity::{Quantity, QuantityError};
pub use reason::Reason;
pub use resources::Resources;
pub use scheduling::{AntiAffinity, Scheduling, TopologySpread, WhenUnsatisfiable};
pub use service::{ClientService, ServiceType};
pub use status::{
    BackupState, ConditionType, EtcdClusterStatus, MemberHealth, MemberRole, MemberStatus, Phase, Verification,
    VerificationResult,
};
pub use storage::{OnDelete, OnScaleDown, Retention, Storage};
pub use store::{BackupStore, Encryption, VolumeClaim};
pub use tls::{Tls, TlsMode, TlsSecrets};
pub use tuning::{AutoCompaction, CompactionMode, EtcdSettings};
