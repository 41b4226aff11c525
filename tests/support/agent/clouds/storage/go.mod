module cloud.google.com/go/storage

go 1.25.8

require google.golang.org/api v0.256.0
