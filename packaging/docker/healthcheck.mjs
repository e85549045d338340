// Whether the server of this container answers: by its private socket, so that port, address and TLS do not matter.
import { readFileSync } from 'node:fs'
import { get } from 'node:http'
import { join } from 'node:path'

function fail(why) {
  console.error(why)
  process.exit(1)
}

try {
  const { socket } = JSON.parse(readFileSync(join(process.env.CORRAL_HOME, 'owner.json'), 'utf8'))
  if (!socket) fail('The server does not listen yet.')
  get({ socketPath: socket, path: '/livez', timeout: 5000 }, ({ statusCode }) =>
    process.exit(statusCode === 200 ? 0 : 1)
  )
    .on('timeout', () => fail('The server does not answer.'))
    .on('error', error => fail(error.message))
} catch (error) {
  fail(`No server runs: ${error.message}`)
}
