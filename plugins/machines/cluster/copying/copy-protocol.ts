import { Type } from 'typebox'
import { Format, Sha256 } from '../../../../core/contracts/native-records.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { Titled } from '../../../../core/http/request-fields.ts'

/*
 * How a node copies a model from another node. The gateway requests a ticket from the source node and passes it to the
 * target node. The target redeems the ticket for the list of files and permission to read them. So no node gets another
 * node's key, and a ticket is useless once redeemed.
 */

export const TICKETS_PATH = '/api/cluster/tickets'
export const REDEEM_PATH = '/api/cluster/tickets/redeem'
export const COPY_PATH = '/api/cluster/copy'
export const filePath = (sha256: string) => `/api/cluster/files/${sha256}`

/** A model as the server that has it offers it. */
export const OfferSchema = Titled('ModelOffer', {
  owner: Type.String(),
  name: Type.String(),
  label: Type.String({ description: 'Variant, such as Q8_0' }),
  revision: Type.String({ description: 'Identifies exactly these files at that server' }),
  format: Format,
  digest: Sha256("64 hex digits, derived from the files' digests"),
  origin: Type.Object(
    {
      kind: Type.Enum(['bundled', 'import', 'hub', 'made']),
      from: Type.String(),
      revision: Type.Optional(Type.String()),
      tag: Type.Optional(Type.String())
    },
    { additionalProperties: true, description: 'Where it came from; a copy keeps it' }
  ),
  defaults: Type.Optional(Type.Unsafe<NonNullable<StoredVariant['defaults']>>({ type: 'object' })),
  files: Type.Array(
    Type.Object(
      {
        path: Type.String(),
        size: Type.Integer({ minimum: 0 }),
        sha256: Sha256(),
        role: Type.Enum(['model', 'projector', 'other'])
      },
      { additionalProperties: true }
    ),
    { minItems: 1 }
  ),
  token: Type.String({ description: 'For GET /api/cluster/files/{sha256}, as "Authorization: Bearer <token>"' })
})
