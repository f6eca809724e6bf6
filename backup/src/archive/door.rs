//! The store as an archive reaches it now. Most kinds read their credentials only when they are opened, and all kinds whom to
//! trust, and an archive runs for months: a store that refuses or fails is opened again, so that new ones count without losing
//! what waits to be stored.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ArchiveError;
use super::status::Reason;
use crate::format::Seal;
use crate::store::{Settings, Store};

/// Shared by all parts of an archive. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Door(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    store: Mutex<Store>,
}

impl Door {
    /// Opens the store, and finds out whether it does what backups need.
    pub async fn open(settings: &Settings) -> Result<Self, ArchiveError> {
        let store = Store::open(settings)?;
        Seal::of(store.keys())?;
        store.prepare().await?;
        Ok(Self::to(store, settings.clone()))
    }

    /// To a store that is open.
    pub fn to(store: Store, settings: Settings) -> Self {
        Self(Arc::new(Inner { settings, store: Mutex::new(store) }))
    }

    /// The store, as it was opened last.
    pub fn store(&self) -> Store {
        self.lock().clone()
    }

    /// What was asked of the store has failed: opens it with the credentials and whom to trust that there are now, if it may be
    /// for those. What a store is not trusted for is told as any failure.
    pub fn failed(&self, reason: Reason) {
        if !matches!(reason, Reason::StoreRefused | Reason::StoreFailed) {
            return;
        }
        match Store::open(&self.0.settings) {
            Ok(store) => *self.lock() = store,
            // They may just be written. It is asked as it is, and refuses again.
            Err(error) => tracing::debug!("the store was not opened again: {error}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
