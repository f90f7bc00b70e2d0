package stream

import (
	"fmt"
	"slices"
)

// RealDigits is the number of digits that every Real keeps.
const RealDigits = 15

// Has reports whether a column has that type.
func (s *Schema) Has(t Type) bool {
	return slices.ContainsFunc(s.columns, func(c column) bool { return c.Type == t })
}

// TextKey returns the columns of the key that hold texts and whose collation matters; none
// with Definition.AnyKeyCollation.
func (s *Schema) TextKey() []string {
	var names []string
	for _, name := range s.def.Key {
		if t := s.columns[s.byName[name]].Type; !s.def.AnyKeyCollation && (t == Text || t == JSON) {
			names = append(names, name)
		}
	}
	return names
}

// The messages about columns of a table that do not suit the stream's. kind is the type of
// the table's column.

// RealOnDecimal says that a Real would be rounded.
func RealOnDecimal(name, kind string) string {
	return fmt.Sprintf("column %s is %s, and values of type real keep only %d digits: declare it as decimal in the stream's columns", name, kind, RealDigits)
}

// DecimalOnOther says that a column does not hold decimals.
func DecimalOnOther(name, kind string) string {
	return fmt.Sprintf("column %s is %s, which does not hold decimals exactly: use a numeric or a text column, or declare another type in the stream's columns", name, kind)
}

// InexactDecimal says that a column would round a value.
func InexactDecimal(name string, value []byte, kind string) string {
	const most = 50
	if len(value) > most {
		value = append(slices.Clone(value[:most]), "..."...)
	}
	return fmt.Sprintf("%s: %s cannot be stored exactly in a column of type %s", name, value, kind)
}

// InexactKey says that a key column does not tell texts apart. exact is a collation that
// does.
func InexactKey(name, collation, exact string) string {
	return fmt.Sprintf("key column %s has collation %s, by which different texts can be equal, so records would be lost: use %s, or set key_collation: accept",
		name, collation, exact)
}
