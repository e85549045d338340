import { Type } from 'typebox'
import { Format, Sha256 } from '../../../../core/contracts/native-records.ts'
import type { StoredVariant } from '../../../../core/contracts/storage.ts'
import { Titled } from '../../../../core/http/request-fields.ts'

/*
 * How a member copies a model from another one. The front asks the member that has it for a ticket, and hands that to the
 * member that lacks it, which redeems it for the list of files and leave to read them. So no member ever gets the key of
 * another one, and a ticket that was overheard is of no use once it has been redeemed.
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
  digest: Sha256("64 hex digits, made of the files' digests"),
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
