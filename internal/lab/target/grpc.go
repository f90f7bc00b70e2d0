package target

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// grpcMethod encodes the requests of a unary method from JSON, and decodes its
// answers. It is immutable and may be shared.
//
// The protocol is gRPC over HTTP/2 as in
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, without compression.
type grpcMethod struct {
	path          string // /package.Service/Method
	input, output protoreflect.MessageDescriptor
	types         *dynamicpb.Types // of Any
	constant      []byte           // the framed request if its template has no values
}

// grpcHeaderBytes is the size of a message's prefix: a flag and the length.
const grpcHeaderBytes = 5

// openGRPC finds the method named package.Service/Method in a file with a
// FileDescriptorSet.
func openGRPC(name, path string) (*grpcMethod, error) {
	if path == "" {
		return nil, errors.New("--grpc requires --proto FILE, as protoc --include_imports --descriptor_set_out=FILE or buf build -o " +
			"FILE.binpb write it")
	}
	text, err := ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--proto: %w", err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(text, &set); err != nil || len(set.File) == 0 {
		return nil, fmt.Errorf("--proto %s: not a file descriptor set; write it with protoc --include_imports --descriptor_set_out=FILE or "+
			"buf build -o FILE.binpb", path)
	}
	descriptors, err := protodesc.NewFiles(&set)
	if err != nil {
		return nil, fmt.Errorf("--proto %s: %w; if an import is missing, use protoc --include_imports", path, err)
	}
	service, method, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	var known []string
	for _, file := range set.File {
		for _, s := range file.Service {
			for _, m := range s.Method {
				full := strings.TrimPrefix(file.GetPackage()+"."+s.GetName(), ".") + "/" + m.GetName()
				known = append(known, full)
			}
		}
	}
	full := service + "/" + method
	if !slices.Contains(known, full) {
		return nil, fmt.Errorf("--grpc %s: not in %s; it has %s", name, path, strings.Join(known, ", "))
	}
	found, err := descriptors.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		return nil, fmt.Errorf("--grpc %s: %w", name, err)
	}
	m := found.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	if m.IsStreamingClient() || m.IsStreamingServer() {
		return nil, fmt.Errorf("--grpc %s: it streams; only unary methods can be loaded", name)
	}
	return &grpcMethod{path: "/" + full, input: m.Input(), output: m.Output(), types: dynamicpb.NewTypes(descriptors)}, nil
}

// check encodes the body once, so that mistakes show before the load.
func (g *grpcMethod) check(body *Template) error {
	frame, err := g.append(nil, body.Append(nil, NewSource(1, 0, new(atomic.Int64))))
	if err != nil {
		return fmt.Errorf("--body: %w", err)
	}
	if _, constant := body.constant(); constant {
		g.constant = frame
	}
	return nil
}

// append appends the request with the JSON text as a framed message to b.
func (g *grpcMethod) append(b, body []byte) ([]byte, error) {
	if g.constant != nil {
		return append(b, g.constant...), nil
	}
	if len(body) == 0 {
		body = []byte("{}")
	}
	message := dynamicpb.NewMessage(g.input)
	if err := (protojson.UnmarshalOptions{Resolver: g.types}).Unmarshal(body, message); err != nil {
		return b, fmt.Errorf("%s is not a %s: %w", oneLine(string(body)), g.input.FullName(), err)
	}
	start := len(b)
	b = append(b, make([]byte, grpcHeaderBytes)...)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, message)
	if err != nil {
		return b, fmt.Errorf("encode %s: %w", g.input.FullName(), err)
	}
	binary.BigEndian.PutUint32(b[start+1:], uint32(len(b)-start-grpcHeaderBytes))
	return b, nil
}

// judge returns the error of an answer whose body was read, or nil. text is the
// beginning of the body, received its size.
func (g *grpcMethod) judge(r *http.Response, checks *Checks, text []byte, received int64) error {
	header := r.Trailer
	if header.Get("Grpc-Status") == "" {
		header = r.Header // an answer of trailers only
	}
	status := header.Get("Grpc-Status")
	code, err := strconv.Atoi(status)
	switch {
	case err != nil:
		return fmt.Errorf("%w: grpc-status %q", errMalformed, status)
	case code != 0:
		return grpcError{code, header.Get("Grpc-Message")}
	case received < grpcHeaderBytes:
		return fmt.Errorf("%w: no message with grpc-status 0", errMalformed)
	case !checks.wantBody():
		return nil
	}
	message, err := g.decode(text, received)
	if err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return checks.judgeBody(message)
}

// decode returns the message of an answer as JSON without blanks between tokens.
func (g *grpcMethod) decode(text []byte, received int64) ([]byte, error) {
	size := int64(len(text) - grpcHeaderBytes)
	switch {
	case received > int64(len(text)):
		return nil, fmt.Errorf("the answer has more than the %d bytes that can be checked", checkedBodyMax)
	case text[0] != 0:
		return nil, errors.New("the answer is compressed")
	case int64(binary.BigEndian.Uint32(text[1:])) != size:
		return nil, errors.New("the answer is not one message")
	}
	message := dynamicpb.NewMessage(g.output)
	if err := proto.Unmarshal(text[grpcHeaderBytes:], message); err != nil {
		return nil, fmt.Errorf("decode %s: %w", g.output.FullName(), err)
	}
	text, err := (protojson.MarshalOptions{Resolver: g.types}).Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", g.output.FullName(), err)
	}
	var compact bytes.Buffer // protojson adds blanks at random
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("decode %s: %w", g.output.FullName(), err)
	}
	return compact.Bytes(), nil
}

// grpcError is an answer with another grpc-status than 0.
type grpcError struct {
	code    int
	message string // percent-encoded
}

// Is makes it an unexpected status.
func (e grpcError) Is(target error) bool { return target == errStatus }

// Error describes the status: "grpc-status 5 NOT_FOUND: no such order".
func (e grpcError) Error() string {
	names := []string{
		"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
		"RESOURCE_EXHAUSTED",
		"FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
	}
	text := "grpc-status " + strconv.Itoa(e.code)
	if e.code >= 0 && e.code < len(names) {
		text += " " + names[e.code]
	}
	message := e.message
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	if message = oneLine(message); message != "" {
		text += ": " + message
	}
	return text
}

// parseGRPC sets up the requests of --grpc.
func (t *Target) parseGRPC(path string) error {
	c := &t.config
	switch {
	case path != "/" || c.Method != "" && c.Method != http.MethodPost || len(c.Requests) > 0:
		return errors.New("with --grpc, write the target without a path, and no method or requests file")
	case len(c.Checks.statuses) > 0:
		return errors.New("--check status= is for HTTP; gRPC answers succeed with grpc-status 0")
	}
	for _, h := range c.Headers {
		if name := http.CanonicalHeaderKey(h.Name); name == "Content-Type" || name == "Te" || name == "Grpc-Timeout" {
			return fmt.Errorf("header %s: --grpc sets it; remove it", h.Name)
		}
	}
	var err error
	if t.grpc, err = openGRPC(c.GRPC, c.Proto); err != nil {
		return err
	}
	if err := t.grpc.check(&c.Body); err != nil {
		return err
	}
	timeout := strconv.FormatInt(max(c.Timeout.Milliseconds(), 1), 10) + "m"
	headers := append(slices.Clone(c.Headers), Header{"Content-Type", "application/grpc"}, Header{"Te", "trailers"},
		Header{"Grpc-Timeout", timeout})
	t.http, err = newHTTPMix([]HTTPRequest{{Method: http.MethodPost, Path: PlainTemplate(t.grpc.path), Body: c.Body}}, t.host, headers)
	return err
}
