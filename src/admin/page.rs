use std::ops::{Deref, DerefMut};
use std::{slice, vec};

/// A page of rows, and how many were skipped because they cannot be read.
///
/// Dereferences to the `Vec` of the rows. A page shorter than its limit is the last one, whatever was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page<T> {
    rows: Vec<T>,
    unreadable: u64,
}

impl<T> Page<T> {
    /// The rows that were skipped: their key is not valid, or their limits or counts are out of bounds.
    ///
    /// Only writes past the database's own checks leave such rows. `tollgate doctor` names their tables.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// The rows.
    #[must_use]
    pub fn into_vec(self) -> Vec<T> {
        self.rows
    }

    #[cfg(feature = "_sql")]
    pub(crate) fn skip_unreadable(&mut self) {
        self.unreadable += 1;
    }
}

impl<T> Default for Page<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<T> From<Vec<T>> for Page<T> {
    fn from(rows: Vec<T>) -> Self {
        Self { rows, unreadable: 0 }
    }
}

impl<T> Deref for Page<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.rows
    }
}

impl<T> DerefMut for Page<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.rows
    }
}

impl<T> IntoIterator for Page<T> {
    type Item = T;
    type IntoIter = vec::IntoIter<T>;

    fn into_iter(self) -> vec::IntoIter<T> {
        self.rows.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Page<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;

    fn into_iter(self) -> slice::Iter<'a, T> {
        self.rows.iter()
    }
}

/// Equal to the rows alone if none was skipped.
impl<T: PartialEq> PartialEq<[T]> for Page<T> {
    fn eq(&self, other: &[T]) -> bool {
        self.unreadable == 0 && self.rows == other
    }
}

/// Equal to the rows alone if none was skipped.
impl<T: PartialEq, const N: usize> PartialEq<[T; N]> for Page<T> {
    fn eq(&self, other: &[T; N]) -> bool {
        *self == other[..]
    }
}

/// Equal to the rows alone if none was skipped.
impl<T: PartialEq> PartialEq<Vec<T>> for Page<T> {
    fn eq(&self, other: &Vec<T>) -> bool {
        *self == other[..]
    }
}
