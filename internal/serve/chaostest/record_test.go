package chaostest

import (
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// columns are the columns of every stream and table, in this order.
var columns = []string{"id", "code", "n", "label", "amount", "r", "at", "j"}

// columnsConfig declares them in the configuration.
const columnsConfig = `{id: {type: integer, required: true}, code: {type: text, required: true}, n: integer, label: text, amount: decimal, r: real, at: timestamp, j: json}`

const longLabel = "a label that is too long for a narrow column, Grüße"

// newRecord returns the JSON object of a record. Each id has the same values in every run of a
// seed. About a third of the values of a column do not fit after the column was narrowed.
func newRecord(seed uint64, id int) string {
	random := rand.New(rand.NewPCG(seed, uint64(id)))
	hard := func() bool { return random.IntN(3) == 0 }
	n := int64(random.IntN(30000))
	if hard() {
		n = random.Int64() >> random.IntN(40)
	}
	label := "l" + strconv.Itoa(random.IntN(100000))
	if hard() {
		label = string([]rune(longLabel)[:20+random.IntN(30)]) + "漢"
	}
	amount := fmt.Sprintf("%d.%02d", random.IntN(100), random.IntN(100))
	if hard() {
		amount = fmt.Sprintf("%d.%04d", random.IntN(1_000_000_000), random.IntN(10000))
	}
	r := float64(random.IntN(10000)) / 8
	if hard() {
		r = random.NormFloat64() * 1e6
	}
	at := time.Unix(1_400_000_000+random.Int64N(300_000_000), 0)
	if hard() {
		at = at.Add(time.Duration(random.IntN(1_000_000)) * time.Microsecond)
	}
	// Two neighbours have codes that are equal without regard to case.
	code := fmt.Sprintf("%s%d", []string{"ab", "AB"}[id%2], id/2)
	return fmt.Sprintf(`{"id":%d,"code":%q,"n":%d,"label":%q,"amount":%s,"r":%s,"at":%q,"j":{"b":[%d,null],"a":"x"}}`,
		id, code, n, label, amount, strconv.FormatFloat(r, 'g', -1, 64), at.UTC().Format("2006-01-02T15:04:05.999999Z"), id%7)
}

// canonicalRecord returns the canonical values of a JSON object.
func canonicalRecord(text string) ([]string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		return nil, err
	}
	var row []string
	for _, name := range columns {
		value := string(fields[name])
		if s := ""; name != "j" && json.Unmarshal(fields[name], &s) == nil {
			value = s
		}
		row = append(row, value)
	}
	return canonical(row), nil
}

// canonical returns the values of a row in one spelling, whatever the types of their columns.
func canonical(row []string) []string {
	if len(row) != len(columns) {
		return row
	}
	row = append([]string(nil), row...)
	for _, i := range []int{4, 2} {
		if n, ok := new(big.Rat).SetString(row[i]); ok {
			row[i] = n.RatString()
		}
	}
	if n, err := strconv.ParseFloat(row[5], 64); err == nil {
		row[5] = strconv.FormatFloat(n, 'g', -1, 64)
	}
	for _, layout := range []string{"2006-01-02 15:04:05.999999999", time.RFC3339Nano} {
		if at, err := time.Parse(layout, row[6]); err == nil {
			row[6] = at.UTC().Format(time.RFC3339Nano)
		}
	}
	var document any
	if err := json.Unmarshal([]byte(row[7]), &document); err == nil {
		text, _ := json.Marshal(document) // it was JSON
		row[7] = string(text)
	}
	row[3] = strings.TrimRight(row[3], " ") // of a CHAR
	row[1] = strings.TrimRight(row[1], " ")
	return row
}

// attempt is one request with a record.
type attempt struct {
	from, to time.Duration // since the start of the run
	answer   string
	known    outcome
}

type outcome uint8

const (
	outcomeUnknown outcome = iota
	outcomeRefused         // not stored by this request
	outcomeAcked
)

// record is a record and its history.
type record struct {
	id         int
	stream     string
	idempotent bool // with an Idempotency-Key
	attempts   []attempt
}

// acked reports whether the record was acknowledged, and maybe whether it can be stored.
func (r *record) acked() (acked, maybe bool) {
	for _, a := range r.attempts {
		acked = acked || a.known == outcomeAcked
		maybe = maybe || a.known != outcomeRefused
	}
	return acked, maybe
}

// String is the history of the record.
func (r *record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "record %d of %s, idempotency key %v, sent %d times:", r.id, r.stream, r.idempotent, len(r.attempts))
	for i, a := range r.attempts {
		last := i == len(r.attempts)-1
		if i > 0 && !last && statusOf(r.attempts[i-1].answer) == statusOf(a.answer) {
			continue // one of many
		}
		fmt.Fprintf(&b, "\n    %.3fs to %.3fs: %s", a.from.Seconds(), a.to.Seconds(), a.answer)
	}
	return b.String()
}

// statusOf is the beginning of an answer, path and status.
func statusOf(answer string) string { return answer[:min(len(answer), 14)] }
