import { randomUUID } from 'node:crypto'

/** Names this server, by whatever address it is reached; another one after each start. */
export const serverId = randomUUID()
