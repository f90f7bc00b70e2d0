package mysql

import (
	"database/sql/driver"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"time"
	"unicode/utf8"

	"spillway/internal/plans"
	"spillway/internal/serve/feed"
)

// keyColumn is one column of the key: its place in a row, its form in a cursor, and its comparison with a parameter. Decimals and dates
// are cast, because the server compares them with text by other rules.
type keyColumn struct {
	index       int
	name        string
	typ         string
	kind        feed.KeyKind
	placeholder string
}

// A DECIMAL has at most so many digits, and so many of them behind the point.
const (
	decimalMax = 65
	scaleMax   = 30
)

// digits returns how many digits a decimal has at most. The precision is derived from the
// display width, which has no place for the sign of an unsigned column.
func (m metadata) digits() int64 { return min(decimalMax, m.precision+2) }

// decimal is a placeholder that keeps more digits than the column has, because the server
// compares decimals with texts and reals as doubles.
func (m metadata) decimal() string {
	return fmt.Sprintf("CAST(? AS DECIMAL(%d,%d))", decimalMax, min(scaleMax, decimalMax-(m.digits()-m.scale)))
}

func newKeyColumn(index int, m metadata) (keyColumn, error) {
	k := keyColumn{index: index, name: m.name, typ: m.typ, placeholder: "?"}
	switch m.typ {
	case "TINYINT", "UNSIGNED TINYINT", "SMALLINT", "UNSIGNED SMALLINT", "MEDIUMINT", "UNSIGNED MEDIUMINT",
		"INT", "UNSIGNED INT", "BIGINT", "UNSIGNED BIGINT", "YEAR", "BIT":
		k.kind = feed.KeyInteger
	case "FLOAT", "DOUBLE":
		k.kind = feed.KeyReal
	case "DECIMAL":
		k.kind = feed.KeyReal
		k.placeholder = fmt.Sprintf("CAST(? AS DECIMAL(%d,%d))", m.digits(), m.scale)
	case "DATE":
		k.kind, k.placeholder = feed.KeyText, "CAST(? AS DATE)"
	case "DATETIME", "TIMESTAMP":
		k.kind, k.placeholder = feed.KeyText, "CAST(? AS DATETIME(6))"
	case "TIME":
		k.kind, k.placeholder = feed.KeyText, "CAST(? AS TIME(6))"
	case "BINARY", "VARBINARY", "BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB":
		k.kind, k.placeholder = feed.KeyBlob, "CAST(? AS BINARY)"
	case "CHAR", "VARCHAR", "TEXT", "TINYTEXT", "MEDIUMTEXT", "LONGTEXT":
		k.kind = feed.KeyText
	case "ENUM", "SET":
		return k, fmt.Errorf("the key column %s is of type %s, which is ordered by the position of its values but compared by their text; "+
			"select it as CAST(%s AS CHAR)",
			m.name, m.typ, plans.MySQL.QuoteAlways(m.name))
	default:
		return k, fmt.Errorf("the key column %s is of type %s, which has no order that a cursor can express", m.name, m.typ)
	}
	return k, nil
}

// text returns the text of a row's value for the key.
func (k keyColumn) text(value driver.Value) ([]byte, error) {
	switch v := value.(type) {
	case int64:
		return strconv.AppendInt(nil, v, 10), nil
	case float64:
		return strconv.AppendFloat(nil, v, 'g', -1, 64), nil
	case float32: // as the server compares it
		return strconv.AppendFloat(nil, float64(v), 'g', -1, 64), nil
	}
	text := bytesOf(value)
	switch k.typ {
	case "BIT":
		return strconv.AppendUint(nil, bitsOf(text), 10), nil
	case "DATE", "DATETIME", "TIMESTAMP":
		if !k.isTime(string(text)) {
			return nil, fmt.Errorf("the key column %s contains %s, which is not a date; exclude such rows from the statement", k.name, text)
		}
		return trimFraction(text), nil
	case "TIME":
		return trimFraction(text), nil
	}
	return text, nil
}

var clockTime = regexp.MustCompile(`^-?[0-9]{2,3}:[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?$`)

func (k keyColumn) isTime(text string) bool {
	layout := time.DateTime // accepts a fraction too
	switch k.typ {
	case "DATE":
		layout = time.DateOnly
	case "TIME":
		return clockTime.MatchString(text)
	}
	_, err := time.Parse(layout, text)
	return err == nil
}

var decimalNumber = regexp.MustCompile(`^-?[0-9]{1,65}(\.[0-9]{1,38})?$`)

// value returns what is bound for a key's value. A value that the column cannot hold wraps
// feed.ErrCursor; the server would convert it with only a warning.
func (k keyColumn) value(v feed.KeyValue) (any, error) {
	if v.Kind == k.kind {
		if bound, ok := k.parse(v.Text); ok {
			return bound, nil
		}
	}
	return nil, fmt.Errorf("column %s cannot hold the key's value: %w", k.name, feed.ErrCursor)
}

func (k keyColumn) parse(text string) (any, bool) {
	switch k.typ {
	case "BIT", "UNSIGNED BIGINT":
		n, err := strconv.ParseUint(text, 10, 64)
		return n, err == nil
	case "FLOAT", "DOUBLE":
		x, err := strconv.ParseFloat(text, 64)
		return x, err == nil && !math.IsNaN(x) && !math.IsInf(x, 0)
	case "DECIMAL":
		return text, decimalNumber.MatchString(text)
	case "DATE", "DATETIME", "TIMESTAMP", "TIME":
		return text, k.isTime(text)
	}
	switch k.kind {
	case feed.KeyInteger:
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil
	case feed.KeyBlob:
		return []byte(text), true
	}
	return text, utf8.ValidString(text)
}
