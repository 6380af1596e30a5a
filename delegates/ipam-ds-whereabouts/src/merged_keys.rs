//! Which of two configurations a key is taken from.

use ipam_kit::Result;
use serde::de::DeserializeOwned;

use crate::flat_file::FlatFile;
use crate::tolerance::Tolerance;
use crate::written::{Written, WrittenPlace};

/// The keys of the network configuration, and those of the flat file, which fill what is empty.
#[derive(Debug)]
pub(crate) struct MergedKeys<'a, K> {
    ipam: K,
    flat: Option<(&'a FlatFile, K)>,
}

impl<'a, K: DeserializeOwned> MergedKeys<'a, K> {
    /// The keys of `ipam` beside those of a flat file.
    ///
    /// # Errors
    /// A key of the file has the wrong type.
    pub(crate) fn new(
        ipam: K,
        flat: Option<&'a FlatFile>,
        tolerance: &mut Tolerance,
    ) -> Result<Self> {
        let flat = flat.map(|file| Ok((file, file.keys(tolerance)?))).transpose()?;
        Ok(Self { ipam, flat })
    }

    /// The keys of the network configuration alone.
    pub(crate) fn of_ipam(&self) -> &K {
        &self.ipam
    }

    /// Whether a key has a value that is not empty.
    pub(crate) fn is_given<T: Default + PartialEq>(
        &mut self,
        of: impl Fn(&mut K) -> &mut Option<T>,
    ) -> bool {
        let keys = [Some(&mut self.ipam), self.flat.as_mut().map(|(_, keys)| keys)];
        let mut values = keys.into_iter().flatten().filter_map(|keys| of(keys).as_ref());
        values.any(|value| *value != T::default())
    }

    /// Takes the value of a key: the first that is not empty.
    pub(crate) fn take<T: Default + PartialEq>(
        &mut self,
        key: &str,
        of: impl Fn(&mut K) -> &mut Option<T>,
    ) -> Option<Written<T>> {
        if let Some(value) = of(&mut self.ipam).take_if(|value| *value != T::default()) {
            return Some(Written { value, place: WrittenPlace::of_ipam(key) });
        }
        let (file, keys) = self.flat.as_mut()?;
        let value = of(keys).take_if(|value| *value != T::default())?;
        Some(Written { value, place: file.place(key) })
    }
}
