// Command descriptor writes the protobuf descriptors of the Container Storage Interface to stdout, for a CSI plugin in
// a language whose code is generated when it starts.
package main

import (
	"log"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
)

func main() {
	set := &descriptorpb.FileDescriptorSet{}
	add(set, csi.File_csi_proto, map[string]bool{})
	data, err := proto.Marshal(set)
	if err == nil {
		_, err = os.Stdout.Write(data)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// add appends a file, behind those that it imports.
func add(set *descriptorpb.FileDescriptorSet, file protoreflect.FileDescriptor, seen map[string]bool) {
	if seen[file.Path()] {
		return
	}
	seen[file.Path()] = true
	for i := 0; i < file.Imports().Len(); i++ {
		add(set, file.Imports().Get(i), seen)
	}
	set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
}
