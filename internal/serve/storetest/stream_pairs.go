package storetest

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway/internal/serve/stream"
)

// ExactColumn is a type of a table's column, and the types of a stream's columns that it takes.
type ExactColumn struct {
	SQL   string
	Table string // follows the definition of the columns, such as STRICT
	// Types are the stream's types that are exact; with round: true those in Rounds are taken too. Every
	// other type must be refused.
	Types, Rounds []stream.Type
	Unkeyed       []stream.Type // that are refused as a key; NoKey: the database has no such index
	NoKey         bool
	Read          string    // expression that returns a value v as text; "": v
	Hex           string    // expression of bytes in hexadecimal; "": Read
	Texts         []string  // some of the texts that are tried
	Wholes        []string  // some of the integers that are tried
	Refused       []string  // JSON values, of the first type, that must be refused
	From, To      time.Time // of timestamps; zero: years 1 to 9999
	Key           string    // the column in a key, if that is not SQL
	Literals      []string  // of SQL: values that the table also has when a feed reads it
	// Returns are the types of a stream that stores what a feed sends, if it is another one than the type that the values had.
	Returns map[stream.Type]stream.Type
}

var streamTypes = []stream.Type{
	stream.Integer, stream.Real, stream.Decimal, stream.Boolean, stream.Text, stream.JSON, stream.Timestamp, stream.Date, stream.Time,
	stream.UUID, stream.Bytes, "text[]", "integer[]",
}

// StreamPairs checks which pairs of types a stream takes. For those, values random and extreme are stored
// and read back, and different ones are never equal in a key. values is how many are tried in all.
func StreamPairs(t *testing.T, b StreamBackend, columns []ExactColumn, values int) {
	db := b.Open(t, streamPool)
	pairs := 0
	for _, c := range columns {
		pairs += len(c.Types)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i, c := range columns {
		t.Run(c.SQL+c.Table, func(t *testing.T) {
			table := fmt.Sprintf("pairs%d", i)
			db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL, v %s)%s", table, b.Types[stream.Integer], c.SQL, c.Table))
			for _, kind := range streamTypes {
				if testing.Short() && random.IntN(3) > 0 {
					continue // the long test tries each
				}
				def := b.pairDefinition(table, kind)
				err := db.check(t, def)
				if taken := slices.Contains(c.Types, kind); taken != (err == nil) || err != nil && !strings.Contains(err.Error(), "column v is") {
					t.Errorf("%s: %v", kind, err)
				}
				def.Columns[1].Round = true
				if err := db.check(t, def); (err == nil) != (slices.Contains(c.Rounds, kind) || slices.Contains(c.Types, kind)) {
					t.Errorf("%s with round: true: %v", kind, err)
				}
			}
			for _, kind := range c.Types {
				c.store(t, db, b, table, kind, c.values(random, kind, values/pairs))
				c.sendBack(t, db, b, table, kind, random)
			}
			if !c.NoKey {
				c.keys(t, db, b, table, random, values/pairs)
			}
		})
	}
}

func (b StreamBackend) pairDefinition(table string, kind stream.Type) stream.Definition {
	return stream.Definition{Name: "/" + table, Table: table, Special: b.Special, Loose: b.Loose, Columns: []stream.Column{
		{Name: "id", Type: stream.Integer}, {Name: "v", Type: kind},
	}}
}

// store stores values and reads them back.
func (c ExactColumn) store(t *testing.T, db StreamDB, b StreamBackend, table string, kind stream.Type, values []string) {
	s := db.stream(t, b.pairDefinition(table, kind), nil)
	var must []string
	if kind == c.Types[0] {
		must = c.Refused
	}
	values = append(slices.Clone(must), values...)
	read := c.Read
	if kind == stream.Bytes && c.Hex != "" {
		read = c.Hex
	}
	if read == "" {
		read = "v"
	}
	stored := 0
	for start := 0; start < len(values); start += 1000 {
		part := values[start:min(start+1000, len(values))]
		db.exec(t, "DELETE FROM "+table)
		accepted := sendValues(t, s, part)
		rows := make(map[string]string)
		for _, row := range db.rows(t, "SELECT id, "+read+" FROM "+table) {
			rows[row[0]] = row[1]
		}
		for i, value := range part {
			got, ok := rows[strconv.Itoa(i)]
			if ok != accepted[i] || ok && sentText(kind, value) != gotText(kind, got) {
				t.Errorf("%s: %.100s came back as %.100q, stored %v, acknowledged %v", kind, value, got, ok, accepted[i])
			}
			if ok {
				stored++
			}
			if ok && start+i < len(must) {
				t.Errorf("%s: %.100s was not refused", kind, value)
			}
		}
	}
	if stored == 0 && kind == c.Types[0] && !testing.Short() { // a few values may all be refused
		t.Errorf("%s: none of %d values was stored", kind, len(values))
	}
}

// sendValues returns which of the values are acknowledged.
func sendValues(t *testing.T, s *stream.Stream, values []string) []bool {
	var body strings.Builder
	for i, value := range values {
		fmt.Fprintf(&body, "{\"id\":%d,\"v\":%s}\n", i, value)
	}
	accepted := slices.Repeat([]bool{true}, len(values))
	for _, refused := range send(t, s, "", body.String()).Refused {
		accepted[refused.Index] = false
		if refused.Field != "v" && !strings.Contains(refused.Reason, "v") {
			t.Errorf("%s: refused without the column's name: %s", values[refused.Index], refused.Reason)
		}
	}
	return accepted
}

// keys stores values under a key. As many rows must be there as different values are acknowledged, also
// after the same values once more.
func (c ExactColumn) keys(t *testing.T, db StreamDB, b StreamBackend, table string, random *rand.Rand, n int) {
	keyed := c.SQL
	if c.Key != "" {
		keyed = c.Key
	}
	table += "k"
	db.exec(t, fmt.Sprintf("CREATE TABLE %s (id %s NOT NULL, v %s NOT NULL, UNIQUE (v))%s", table, b.Types[stream.Integer], keyed, c.Table))
	for _, kind := range c.Types {
		def := stream.Definition{
			Name: "/" + table, Table: table, Key: []string{"v"}, Special: b.Special, Loose: b.Loose,
			Columns: []stream.Column{{Name: "id", Type: stream.Integer}, {Name: "v", Type: kind, Required: true}},
		}
		if err := db.check(t, def); (err != nil) != slices.Contains(c.Unkeyed, kind) {
			t.Errorf("%s as key: %v", kind, err)
		}
		if slices.Contains(c.Unkeyed, kind) {
			continue
		}
		s := db.stream(t, def, nil)
		values := c.values(random, kind, n)
		for start := 0; start < len(values); start += 1000 {
			part := values[start:min(start+1000, len(values))]
			db.exec(t, "DELETE FROM "+table)
			different := make(map[string]bool)
			accepted := sendValues(t, s, part)
			if again := sendValues(t, s, part); !slices.Equal(again, accepted) {
				t.Errorf("%s as key: accepted %v, then %v", kind, accepted, again)
			}
			for i, ok := range accepted {
				if ok {
					different[sentText(kind, part[i])] = true
				}
			}
			if got := db.column(t, "SELECT count(*) FROM "+table); got != strconv.Itoa(len(different)) && kind != stream.JSON {
				t.Errorf("%s as key: %d different values are %s rows", kind, len(different), got)
			}
		}
	}
}

// sentText returns the text of a JSON value. Equal values have equal texts.
func sentText(kind stream.Type, value string) string {
	var text string
	if kind == stream.JSON || json.Unmarshal([]byte(value), &text) != nil {
		text = value
	}
	return plainText(kind, text)
}

// gotText returns the same of a database's text.
func gotText(kind stream.Type, text string) string {
	if kind == stream.Boolean {
		text = map[string]string{"1": "true", "0": "false"}[text]
	}
	if kind == stream.Bytes {
		raw, _ := hex.DecodeString(text)
		text = base64.StdEncoding.EncodeToString(raw)
	}
	if kind == stream.Real && strings.HasSuffix(text, "Inf") { // as Go writes it
		text = strings.TrimPrefix(text, "+") + "inity"
	}
	return plainText(kind, text)
}

func plainText(kind stream.Type, text string) string {
	number := kind == stream.JSON && len(text) > 0 && (text[0] == '-' || text[0] >= '0' && text[0] <= '9')
	if number || kind == stream.Integer { // 1.00 and 1e0 are 1
		kind = stream.Decimal
	}
	if kind == stream.Text || kind == stream.JSON {
		return text
	}
	v, ok := kind.ParseValue([]byte(text))
	if !ok {
		return "not " + string(kind) + ": " + text
	}
	plain := string(kind.AppendText(nil, v))
	switch {
	case kind == stream.Decimal:
		return string(stream.TrimDecimal([]byte(plain)))
	case kind == stream.Real && v.Real() == 0:
		return "0"
	}
	return plain
}

// values returns JSON values of a type.
func (c ExactColumn) values(random *rand.Rand, kind stream.Type, n int) []string {
	list := make([]string, max(n, 20))
	for i := range list {
		list[i] = c.random(random, kind)
		if i > 0 && random.IntN(4) == 0 { // or one like it
			list[i] = c.near(random, kind, list[i-1])
		}
	}
	return list
}

func (c ExactColumn) random(random *rand.Rand, kind stream.Type) string {
	whole := random.Int64() >> random.IntN(64)
	if random.IntN(2) == 0 {
		whole = -whole - 1
	}
	switch kind {
	case stream.Integer:
		if small := append([]string{"0", "1"}, c.Wholes...); random.IntN(3) == 0 {
			return small[random.IntN(len(small))]
		}
		if random.IntN(4) == 0 {
			whole = random.Int64N(2)*1900 + whole%300
		}
		if random.IntN(20) == 0 {
			return strconv.FormatUint(uint64(whole)|1<<63, 10)
		}
		return strconv.FormatInt(whole, 10)
	case stream.Real:
		x := math.Float64frombits(random.Uint64())
		switch random.IntN(4) {
		case 0:
			x = float64(whole)
		case 1:
			x = float64(whole%1e6) / 100
		case 2:
			x = float64(whole%1000) * math.Pow(2, float64(random.IntN(20)-15))
		}
		if random.IntN(20) == 0 {
			return []string{`"NaN"`, `"Infinity"`, `"-Infinity"`}[random.IntN(3)]
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			x = math.SmallestNonzeroFloat64
		}
		return strconv.FormatFloat(x, 'g', -1, 64)
	case stream.Decimal:
		text := strconv.FormatInt(whole, 10)
		switch random.IntN(20) {
		case 0:
			return []string{`"NaN"`, `"Infinity"`, `"-Infinity"`}[random.IntN(3)]
		case 1, 2, 3, 4, 5, 6:
			return text
		}
		return fmt.Sprintf("%s.%0*d", text, 1+random.IntN(3), random.IntN(10))
	case stream.Boolean:
		return strconv.FormatBool(random.IntN(2) == 0)
	case stream.Text:
		return quoted(c.text(random))
	case stream.JSON:
		return []string{
			strconv.FormatInt(whole, 10), quoted(c.text(random)), "true", fmt.Sprintf(`{"b":%d,"a":[1.50,-0.0]}`, whole), "1.0", "-0", "1e3", "[]",
			fmt.Sprintf("%d.%d", whole, random.IntN(100)), "12345678901234567890123",
		}[random.IntN(10)]
	}
	return c.moment(random, kind)
}

// moment returns a JSON value of another type.
func (c ExactColumn) moment(random *rand.Rand, kind stream.Type) string {
	from, to := c.From, c.To
	if from.IsZero() {
		from, to = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	}
	unit := int64(math.Pow10(random.IntN(7)))
	micro := random.Int64N(1_000_000) / unit * unit
	at := time.Unix(from.Unix()+random.Int64N(to.Unix()-from.Unix()), micro*1000).UTC()
	var v stream.Value
	if random.IntN(10) == 0 { // in the years from 4713 BC to 294246
		at = time.Unix(random.Int64N(298_000*365*86400)-6600*365*86400, micro*1000)
	}
	switch kind {
	case stream.Timestamp:
		v.N = at.UnixMicro()
	case stream.Date:
		v.N = int64(math.Floor(float64(at.Unix()) / 86400))
	case stream.Time:
		v.N = random.Int64N(86400)*1e6 + micro
		if random.IntN(4) == 0 {
			v.N = -v.N * random.Int64N(41)
		}
	case stream.UUID, stream.Bytes:
		v.Bytes = make([]byte, 16)
		if kind == stream.Bytes {
			v.Bytes = v.Bytes[:random.IntN(10)]
		}
		for i := range v.Bytes {
			v.Bytes[i] = byte(random.IntN(256) * random.IntN(2))
		}
	}
	if kind == stream.Timestamp || kind == stream.Date {
		switch random.IntN(40) {
		case 0:
			v.N = math.MaxInt64
		case 1:
			v.N = math.MinInt64
		}
	}
	return quoted(string(kind.AppendText(nil, v)))
}

func (c ExactColumn) text(random *rand.Rand) string {
	if len(c.Texts) > 0 && random.IntN(5) > 0 {
		return c.Texts[random.IntN(len(c.Texts))]
	}
	parts := []string{
		"a", "A", "ä", "0", "1", ".", "-", " ", " ", "集", "\U0001F600", "e\u0301", "'",
		"\\", ",", "%", "\t", "ß", "ss", "\u200b", ":",
	}
	var text strings.Builder
	for range random.IntN(8) {
		text.WriteString(parts[random.IntN(len(parts))])
	}
	return text.String()
}

// near returns a value that looks like another one.
func (c ExactColumn) near(random *rand.Rand, kind stream.Type, value string) string {
	switch kind {
	case stream.Integer:
		if n, err := strconv.ParseInt(value, 10, 64); err == nil && n < math.MaxInt64 {
			return strconv.FormatInt(n+1, 10)
		}
	case stream.Real:
		x, err := strconv.ParseFloat(value, 64)
		if x = math.Nextafter(x, 0); x != 0 && err == nil {
			return strconv.FormatFloat(x, 'g', -1, 64)
		}
	case stream.Decimal:
		if strings.Contains(value, ".") { // and not NaN
			return value + strconv.Itoa(random.IntN(3)%2)
		}
	case stream.Text:
		var text string
		_ = json.Unmarshal([]byte(value), &text)
		return quoted([]string{strings.ToUpper(text), text + " ", " " + text, text + "0", strings.TrimSpace(text)}[random.IntN(5)])
	case stream.Timestamp, stream.Time:
		if text := strings.Trim(value, `"`); strings.Contains(text, ".") {
			return quoted(text[:strings.IndexByte(text, '.')+2])
		}
	case stream.Bytes:
		raw, _ := base64.StdEncoding.DecodeString(strings.Trim(value, `"`))
		return quoted(base64.StdEncoding.EncodeToString(append(raw, byte(32*random.IntN(2)))))
	}
	return value
}

func quoted(text string) string {
	encoded, _ := json.Marshal(text)
	return string(encoded)
}
