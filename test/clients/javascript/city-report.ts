import { z } from 'zod'

/** The schema for structured answers. It is limited, so that any model comes to an end. */
export const CityReport = z.object({ city: z.enum(['Paris', 'Rome']), warm: z.boolean(), rank: z.enum(['1', '2']) })
