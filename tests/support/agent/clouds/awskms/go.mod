module github.com/hashicorp/go-kms-wrapping/wrappers/awskms/v2

go 1.25.8

require github.com/hashicorp/go-kms-wrapping/v2 v2.0.20
