import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

/** Why certificates cannot be made on this machine, or undefined if they can. */
export function whyNoCertificates(): string | undefined {
  return spawnSync('openssl', ['version']).status === 0 ? undefined : 'openssl is not installed'
}

/** A self-signed certificate for localhost that expires after this many days. */
export function makeCertificate(days: number, name = 'localhost'): { cert: string; key: string } {
  const folder = mkdtempSync(join(tmpdir(), 'corral-test-'))
  try {
    const [key, cert] = [join(folder, 'key.pem'), join(folder, 'cert.pem')]
    const made = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
    const alternatives = `subjectAltName=DNS:localhost,IP:127.0.0.1`
    const named = ['-subj', `/CN=${name}`, '-addext', alternatives, '-days', `${days}`, '-keyout', key, '-out', cert]
    execFileSync('openssl', [...made, ...named], { stdio: 'pipe' })
    return { cert: readFileSync(cert, 'utf8'), key: readFileSync(key, 'utf8') }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}
