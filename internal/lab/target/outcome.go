package target

// Kind says what a request did to the target's data.
type Kind uint8

// The kinds. HTTP requests are reads (GET, HEAD, OPTIONS) or writes; statements
// and commands go by their verb.
const (
	Other Kind = iota
	Read
	Write
)

// Outcome is what became of one request. Times are nanoseconds on the run's
// Clock; zero means that it did not come to that.
type Outcome struct {
	Intended  int64 // when the request was due
	Begin     int64 // when a connection took it: connecting or writing begins
	Connected int64 // when the connection it had to open was open
	Sent      int64 // when its bytes were handed to the kernel
	First     int64 // when the first bytes of the answer were read
	Done      int64 // when its last bytes were read, or the failure was seen

	Connection    int // which connection carried it
	Kind          Kind
	Status        int // HTTP status; zero for other targets
	BytesSent     int
	BytesReceived int64
	Err           error // nil: answered as wanted; Classify names the others
}
