//! The fields that a type reads of an object.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

/// Asserts that the fields that `T` reads are these, in any order.
#[track_caller]
pub fn assert_fields<T: for<'de> Deserialize<'de>>(names: &[&str]) {
    let Err(Seen(mut fields)) = T::deserialize(Witness) else { panic!("it reads no object") };
    fields.sort_unstable();
    let mut names = names.to_vec();
    names.sort_unstable();
    assert_eq!(fields, names);
}

/// Tells the names of the fields that it is asked for.
struct Witness;

#[derive(Debug)]
struct Seen(Vec<&'static str>);

impl<'de> Deserializer<'de> for Witness {
    type Error = Seen;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Seen> {
        Err(Seen(fields.to_vec()))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Seen> {
        panic!("it is no struct, or a flattened one, which tells no names")
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl std::error::Error for Seen {}

impl de::Error for Seen {
    fn custom<T: fmt::Display>(message: T) -> Self {
        panic!("{message}")
    }
}
