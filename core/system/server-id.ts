import { randomUUID } from 'node:crypto'

/** Identifies this server independently of its address. It changes at each start. */
export const serverId = randomUUID()
