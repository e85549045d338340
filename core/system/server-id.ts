import { randomUUID } from 'node:crypto'

/** Identifies this server, whatever its address; a new one after each start. */
export const serverId = randomUUID()
