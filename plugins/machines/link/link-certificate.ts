import { generateKeyPairSync, hash, randomBytes, sign, X509Certificate } from 'node:crypto'
import { AsnConvert, OctetString } from '@peculiar/asn1-schema'
import {
  AlgorithmIdentifier,
  AttributeTypeAndValue,
  AttributeValue,
  Certificate,
  Extension,
  Extensions,
  GeneralName,
  id_ce_subjectAltName,
  Name,
  RelativeDistinguishedName,
  SubjectAlternativeName,
  SubjectPublicKeyInfo,
  TBSCertificate,
  Validity,
  Version
} from '@peculiar/asn1-x509'

const ECDSA_WITH_SHA256 = '1.2.840.10045.4.3.2'
const COMMON_NAME = '2.5.4.3'
/** The name in every machine's certificate. Certificates are pinned, so it identifies nobody. */
export const CERTIFICATE_NAME = 'corral-link'

/** A machine's certificate and private key, both in PEM. */
export interface Identity {
  certificate: string
  key: string
}

/**
 * Creates a self-signed certificate (X.509, RFC 5280) for both ends of TLS. It is valid for ever, because linked
 * machines trust exactly this certificate and may have wrong clocks.
 */
export function createIdentity(): Identity {
  const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
  const signature = new AlgorithmIdentifier({ algorithm: ECDSA_WITH_SHA256 })
  const name = new Name([
    new RelativeDistinguishedName([
      new AttributeTypeAndValue({ type: COMMON_NAME, value: new AttributeValue({ utf8String: CERTIFICATE_NAME }) })
    ])
  ])
  const alternative = new SubjectAlternativeName([new GeneralName({ dNSName: CERTIFICATE_NAME })])
  const serial = randomBytes(16)
  // A positive integer without leading zeros.
  serial[0] = (serial[0]! & 0x3f) | 0x40
  const unsigned = new TBSCertificate({
    version: Version.v3,
    serialNumber: arrayBuffer(serial),
    signature,
    issuer: name,
    subject: name,
    validity: new Validity({ notBefore: new Date('2000-01-01'), notAfter: new Date('2999-12-31') }),
    subjectPublicKeyInfo: AsnConvert.parse(publicKey.export({ type: 'spki', format: 'der' }), SubjectPublicKeyInfo),
    extensions: new Extensions([
      new Extension({
        extnID: id_ce_subjectAltName,
        extnValue: new OctetString(AsnConvert.serialize(alternative))
      })
    ])
  })
  const signed = new Certificate({
    tbsCertificate: unsigned,
    signatureAlgorithm: signature,
    signatureValue: arrayBuffer(sign('sha256', Buffer.from(AsnConvert.serialize(unsigned)), privateKey))
  })
  return {
    certificate: new X509Certificate(Buffer.from(AsnConvert.serialize(signed))).toString(),
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString()
  }
}

/** Identifies a machine: 32 hex digits, derived from its certificate. @throws Error if it is not a certificate */
export const machineId = (certificate: string | Buffer) =>
  hash('sha256', new X509Certificate(certificate).raw).slice(0, 32)

const arrayBuffer = (bytes: Buffer) => new Uint8Array(bytes).buffer
